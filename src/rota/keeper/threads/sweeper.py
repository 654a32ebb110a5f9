"""Signals trees whose time is up; once a second sweeps up orphans, more often looks who breaks a limit."""

import contextlib
import math
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Container, Sequence

from rota.keeper import limit_checks
from rota.keeper.attempt import Kernel, LimitViolation, RunningAttempt
from rota.keeper.limits.cgroups import Cgroup, Cgroups
from rota.keeper.process import trees
from rota.keeper.process.trees import ChildProcess, MarkedProcess
from rota.keeper.resources.reservations import AttemptKey
from rota.keeper.supervisor import Supervisor
from rota.keeper.threads import kill_tree
from rota.keeper.threads.kill_tree import TreeKiller

SWEEP_SECONDS = 1.0
SCAN_SECONDS = 0.5  # at many processes that rest takes a tenth of it


class Sweeper:
    def __init__(
        self,
        supervisor: Supervisor,
        mark: str,
        cgroups: Cgroups,
        maintenance: Sequence[Callable[[], None]],
        cells: Container[int] = (),
    ) -> None:
        self._supervisor = supervisor
        self._cgroups = cgroups
        self._tree_killer = TreeKiller(mark, cgroups)
        self._maintenance = maintenance
        self._cells = cells  # first processes of cells: children of the keeper that are nobody's orphans
        self._mark = mark
        self._kernel = Kernel()
        self._orphans: dict[ChildProcess, frozenset[AttemptKey]] = {}

    def run(self) -> None:
        busy, sweep_at = True, 0.0
        while True:
            if time.monotonic() >= sweep_at:
                self._cgroups.leave_shared_cgroup()
                busy, sweep_at = self._sweep(), time.monotonic() + SWEEP_SECONDS
                self._supervisor.maintain_journal()
                for prepare in self._maintenance:
                    prepare()
            watches = self._check_limits()
            due = self._wait_due(
                limit_checks.INTERVAL_SECONDS if watches else SWEEP_SECONDS if busy else None
            )
            if due:
                self._advance_terminations(due)
            if not busy:  # something was started: it has left nobody behind yet, and wants the machine itself
                busy, sweep_at = True, time.monotonic() + SWEEP_SECONDS

    def _wait_due(self, seconds: float | None) -> dict[AttemptKey, bool]:
        """The attempts to look at now, each with whether its leader is gone; none after so many seconds."""
        work = self._supervisor
        with work.lock:
            left_ns = work.timers.due_in_ns()
            if left_ns is None or left_ns > 0:
                if left_ns is not None:  # a second at most: the wait's clock stands still in sleep
                    seconds = min(SWEEP_SECONDS if seconds is None else seconds, left_ns / 1e9)
                elif work.sweep_needed:
                    seconds = SWEEP_SECONDS
                work.sweeper_idle = seconds is None
                work.sweeper_wakeup.wait(seconds)
                work.sweeper_idle = work.sweep_needed = False
            return work.timers.pop_due()

    def _check_limits(self) -> bool:
        """Kill who went beyond a limit; True while there are limits to watch."""
        with self._supervisor.lock:
            limited = [one for one in self._supervisor.running.values() if one.pid and one.spec.limits]
        found: dict[AttemptKey, list[int]] = {}
        if any(attempt.cgroup is None for attempt in limited):
            found = limit_checks.pids_by_attempt(trees.find_marked(self._mark))
        for attempt in limited:
            group, limits = attempt.cgroup, limit_checks.unenforced_limits(attempt)
            tree = found.get(attempt.key, []) if group is None else group.members() if limits else []
            excess = limit_checks.cgroup_violation(attempt) or limit_checks.measured_violation(limits, tree)
            if excess and self._kill_for_violation(attempt, excess):
                for pid in tree if group is None else ():
                    trees.signal_marked(pid, self._mark, signal.SIGKILL)
                if group:
                    group.kill()
        return bool(limited)

    def _kill_for_violation(self, attempt: RunningAttempt, violation: LimitViolation) -> bool:
        """It went beyond a limit; False: it has ended before. As long as its leader is not buried, the
        number is nobody else's."""
        with self._supervisor.lock:
            if (
                self._supervisor.running.get(attempt.key) is not attempt
                or attempt.exit_status
                or attempt.violation
            ):
                return False
            attempt.violation = violation
            self._kernel.signal_group(attempt.pid, signal.SIGKILL)
            return True

    def _advance_terminations(self, due: dict[AttemptKey, bool]) -> None:
        """One look at the machine serves every attempt that is due and has no group of its own."""
        with self._supervisor.lock:
            running = {key: self._supervisor.running[key] for key in due if key in self._supervisor.running}
        self._supervisor.signal_leaders(due)
        groups = {key: attempt.cgroup for key, attempt in running.items() if attempt.cgroup}
        with contextlib.ExitStack() as stillness:
            marked = self._find_processes(stillness) if len(groups) < len(due) else []
            self._signal_trees(due, groups, marked)
        self._supervisor.start_admitted()

    def _find_processes(self, frozen: contextlib.ExitStack) -> list[MarkedProcess]:
        """Whoever cannot be looked at in time is held still for that, and until it has its signal."""
        try:
            return trees.find_marked(self._mark, SCAN_SECONDS if self._cgroups.can_freeze else math.inf)
        except TimeoutError:
            frozen.enter_context(self._cgroups.freeze_all())
            return trees.find_marked(self._mark)

    def _signal_trees(
        self, due: dict[AttemptKey, bool], groups: dict[AttemptKey, Cgroup], marked: Sequence[MarkedProcess]
    ) -> None:
        found: dict[AttemptKey, list[MarkedProcess]] = defaultdict(list)
        for process in marked:
            if process.key in due:
                found[process.key].append(process)
        for key, was_gone in due.items():
            group = groups.get(key)
            tree = (
                trees.with_groups(group.members()) if group else [(one.pid, one.group) for one in found[key]]
            )
            signum, pids = self._supervisor.advance_termination(key, leader_exited=was_gone, tree=tree)
            if group and signum == signal.SIGKILL:
                group.kill()
            elif group and signum:
                group.signal(signum, pids)
            elif signum == signal.SIGKILL and len(pids) >= kill_tree.TREE_PROCESSES_MIN:
                self._tree_killer.kill(key, found[key])
            else:
                for pid in pids if signum else ():
                    trees.signal_marked(pid, self._mark, signum)

    def _sweep(self) -> bool:
        """Kill the orphans of ended attempts; True while there is something to watch.

        An orphan without a mark may belong to any attempt that ran when it was first seen: it dies with the
        last of those.
        """
        children = [child for child in trees.find_children() if child.pid not in self._cells]
        with self._supervisor.lock:
            live = frozenset(self._supervisor.running)
            by_pid = {pid: attempt.key for pid, attempt in self._supervisor.by_pid.items()}
            checks = self._supervisor.services.check_pids()
        before, suspects = self._orphans, {}
        give_up_at = time.monotonic() + SCAN_SECONDS  # the others are looked at next time
        for child in children:
            owners = before.get(child)
            if owners is None and child.pid not in by_pid and time.monotonic() < give_up_at:
                owners = self._owners(child, by_pid, live)
            if owners is not None and child.pid not in by_pid:
                suspects[child] = owners
        self._orphans = suspects
        for child, owners in suspects.items():
            is_left = not owners & live or (child.pid not in checks and trees.is_check(child.pid, self._mark))
            if child in before and is_left:  # seen before: nobody is just about to write it down
                trees.signal_child(child, signal.SIGKILL)
        return bool(live or suspects)

    def _owners(
        self, child: ChildProcess, by_pid: dict[int, AttemptKey], live: frozenset[AttemptKey]
    ) -> frozenset[AttemptKey]:
        key = trees.attempt_key(child.pid, self._mark) or by_pid.get(child.session)
        return frozenset([key]) if key else live
