"""Signals trees whose time is up; once a second sweeps up orphans, more often looks who breaks a limit."""

import contextlib
import math
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Container, Sequence

from rota.keeper import crowds, patrol
from rota.keeper.attempt import Excess, Kernel, Running
from rota.keeper.crowds import Crowds
from rota.keeper.limits.cgroups import Group, Groups
from rota.keeper.process import trees
from rota.keeper.process.trees import Child, Marked
from rota.keeper.rules import Key
from rota.keeper.work import Work

SWEEP_SECONDS = 1.0
LOOK_SECONDS = 0.5  # at many processes that rest takes a tenth of it


class Warden:
    def __init__(
        self,
        work: Work,
        mark: str,
        groups: Groups,
        stock_up: Sequence[Callable[[], None]],
        cells: Container[int] = (),
    ) -> None:
        self._work = work
        self._groups = groups
        self._crowds = Crowds(mark, groups)
        self._stock_up = stock_up
        self._cells = cells  # first processes of cells: children of the keeper that are nobody's orphans
        self._mark = mark
        self._kernel = Kernel()
        self._suspects: dict[Child, frozenset[Key]] = {}

    def run(self) -> None:
        busy, sweep_at = True, 0.0
        while True:
            if time.monotonic() >= sweep_at:
                self._groups.step_aside()
                busy, sweep_at = self._sweep(), time.monotonic() + SWEEP_SECONDS
                self._work.keep_up()
                for prepare in self._stock_up:
                    prepare()
            watches = self._patrol()
            due = self._wait_due(patrol.EVERY_SECONDS if watches else SWEEP_SECONDS if busy else None)
            if due:
                self._tend(due)
            if not busy:  # something was started: it has left nobody behind yet, and wants the machine itself
                busy, sweep_at = True, time.monotonic() + SWEEP_SECONDS

    def _wait_due(self, seconds: float | None) -> dict[Key, bool]:
        """The attempts to look at now, each with whether its leader is gone; none after so many seconds."""
        work = self._work
        with work.lock:
            left_ns = work.looks.due_in_ns()
            if left_ns is None or left_ns > 0:
                if left_ns is not None:  # a second at most: the wait's clock stands still in sleep
                    seconds = min(SWEEP_SECONDS if seconds is None else seconds, left_ns / 1e9)
                elif work.is_unswept:
                    seconds = SWEEP_SECONDS
                work.warden_idles = seconds is None
                work.something_due.wait(seconds)
                work.warden_idles = work.is_unswept = False
            return work.looks.take()

    def _patrol(self) -> bool:
        """Kill who went beyond a limit; True while there are limits to watch."""
        with self._work.lock:
            limited = [one for one in self._work.running.values() if one.pid and one.spec.limits]
        found: dict[Key, list[int]] = {}
        if any(attempt.group is None for attempt in limited):
            found = patrol.trees_of(trees.find_marked(self._mark))
        for attempt in limited:
            group, limits = attempt.group, patrol.watched(attempt)
            tree = found.get(attempt.key, []) if group is None else group.members() if limits else []
            excess = patrol.excess_of(attempt) or patrol.seen_excess(limits, tree)
            if excess and self._condemn(attempt, excess):
                for pid in tree if group is None else ():
                    trees.signal_marked(pid, self._mark, signal.SIGKILL)
                if group:
                    group.kill()
        return bool(limited)

    def _condemn(self, attempt: Running, excess: Excess) -> bool:
        """It went beyond a limit; False: it has ended before. As long as its leader is not buried, the
        number is nobody else's."""
        with self._work.lock:
            if self._work.running.get(attempt.key) is not attempt or attempt.outcome or attempt.excess:
                return False
            attempt.excess = excess
            self._kernel.signal_group(attempt.pid, signal.SIGKILL)
            return True

    def _tend(self, due: dict[Key, bool]) -> None:
        """One look at the machine serves every attempt that is due and has no group of its own."""
        with self._work.lock:
            running = {key: self._work.running[key] for key in due if key in self._work.running}
        self._work.strike(due)
        groups = {key: attempt.group for key, attempt in running.items() if attempt.group}
        with contextlib.ExitStack() as stillness:
            marked = self._find(stillness) if len(groups) < len(due) else []
            self._carry_on(due, groups, marked)
        self._work.fill()

    def _find(self, stillness: contextlib.ExitStack) -> list[Marked]:
        """Whoever cannot be looked at in time is held still for that, and until it has its signal."""
        try:
            return trees.find_marked(self._mark, LOOK_SECONDS if self._groups.can_hold_still else math.inf)
        except TimeoutError:
            stillness.enter_context(self._groups.still())
            return trees.find_marked(self._mark)

    def _carry_on(self, due: dict[Key, bool], groups: dict[Key, Group], marked: Sequence[Marked]) -> None:
        found: dict[Key, list[Marked]] = defaultdict(list)
        for process in marked:
            if process.key in due:
                found[process.key].append(process)
        for key, was_gone in due.items():
            group = groups.get(key)
            tree = (
                trees.with_groups(group.members()) if group else [(one.pid, one.group) for one in found[key]]
            )
            signum, pids = self._work.tend(key, was_gone=was_gone, tree=tree)
            if group and signum == signal.SIGKILL:
                group.kill()
            elif group and signum:
                group.signal(signum, pids)
            elif signum == signal.SIGKILL and len(pids) >= crowds.LEAST:
                self._crowds.kill(key, found[key])
            else:
                for pid in pids if signum else ():
                    trees.signal_marked(pid, self._mark, signum)

    def _sweep(self) -> bool:
        """Kill the orphans of ended attempts; True while there is something to watch.

        An orphan without a mark may belong to any attempt that ran when it was first seen: it dies with the
        last of those.
        """
        children = [child for child in trees.find_children() if child.pid not in self._cells]
        with self._work.lock:
            live = frozenset(self._work.running)
            by_pid = {pid: attempt.key for pid, attempt in self._work.by_pid.items()}
            checks = self._work.lives.commands()
        before, suspects = self._suspects, {}
        give_up_at = time.monotonic() + LOOK_SECONDS  # the others are looked at next time
        for child in children:
            owners = before.get(child)
            if owners is None and child.pid not in by_pid and time.monotonic() < give_up_at:
                owners = self._owners(child, by_pid, live)
            if owners is not None and child.pid not in by_pid:
                suspects[child] = owners
        self._suspects = suspects
        for child, owners in suspects.items():
            is_left = not owners & live or (
                child.pid not in checks and trees.is_of_check(child.pid, self._mark)
            )
            if child in before and is_left:  # seen before: nobody is just about to write it down
                trees.signal_child(child, signal.SIGKILL)
        return bool(live or suspects)

    def _owners(self, child: Child, by_pid: dict[int, Key], live: frozenset[Key]) -> frozenset[Key]:
        key = trees.key_of(child.pid, self._mark) or by_pid.get(child.session)
        return frozenset([key]) if key else live
