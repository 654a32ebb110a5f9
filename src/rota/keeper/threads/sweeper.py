"""The sweeper thread: timers and signals of attempts, limits that no cgroup enforces, orphans."""

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
SCAN_SECONDS = 0.5  # for a scan of all processes; many idle ones take a tenth of that


class Sweeper:
    """The loop of the sweeper thread. It scans `/proc` without the lock and takes it for each decision."""

    def __init__(
        self,
        supervisor: Supervisor,
        mark: str,
        cgroups: Cgroups,
        maintenance: Sequence[Callable[[], None]],
        namespace_pids: Container[int] = (),
    ) -> None:
        self._supervisor = supervisor
        self._cgroups = cgroups
        self._tree_killer = TreeKiller(mark, cgroups)
        self._maintenance = maintenance
        self._namespace_pids = namespace_pids  # init processes: children of the keeper, but no orphans
        self._mark = mark
        self._kernel = Kernel()
        self._orphans: dict[ChildProcess, frozenset[AttemptKey]] = {}

    def run(self) -> None:
        busy, sweep_at = True, 0.0
        while True:
            if time.monotonic() >= sweep_at:
                # The keeper must not share a leaf with many processes
                # of attempts: it would hardly get CPU time.
                self._cgroups.leave_shared_cgroup()
                busy, sweep_at = self._sweep(), time.monotonic() + SWEEP_SECONDS
                self._supervisor.maintain_journal()
                for prepare in self._maintenance:
                    prepare()
            has_limits = self._check_limits()
            due = self._wait_due(
                limit_checks.INTERVAL_SECONDS if has_limits else SWEEP_SECONDS if busy else None
            )
            if due:
                self._advance_terminations(due)
            if not busy:  # something was just started: it has left no orphans yet, so sweep a second later
                busy, sweep_at = True, time.monotonic() + SWEEP_SECONDS

    def _wait_due(self, seconds: float | None) -> dict[AttemptKey, bool]:
        """Wait for timers; return the attempts that are due, each with whether its leader has exited."""
        supervisor = self._supervisor
        with supervisor.lock:
            left_ns = supervisor.timers.due_in_ns()
            if left_ns is None or left_ns > 0:
                if left_ns is not None:  # a second at most: the clock of the wait stops in suspend
                    seconds = min(SWEEP_SECONDS if seconds is None else seconds, left_ns / 1e9)
                elif supervisor.sweep_needed:
                    seconds = SWEEP_SECONDS
                # Read by starters, which otherwise notify only for deadlines and limits.
                supervisor.sweeper_idle = seconds is None
                supervisor.sweeper_wakeup.wait(seconds)
                supervisor.sweeper_idle = supervisor.sweep_needed = False
            return supervisor.timers.pop_due()

    def _check_limits(self) -> bool:
        """Kill attempts that exceeded a limit; True while there are attempts with limits."""
        with self._supervisor.lock:
            running = self._supervisor.running.values()
            # A copy, because the measurements below take too long for the lock.
            limited = [attempt for attempt in running if attempt.pid and attempt.spec.limits]
        found: dict[AttemptKey, list[int]] = {}
        if any(attempt.cgroup is None for attempt in limited):
            found = limit_checks.pids_by_attempt(trees.find_marked(self._mark))
        for attempt in limited:
            group, limits = attempt.cgroup, limit_checks.unenforced_limits(attempt)
            tree = found.get(attempt.key, []) if group is None else group.members() if limits else []
            violation = limit_checks.cgroup_violation(attempt) or limit_checks.measured_violation(
                limits, tree
            )
            if violation and self._kill_for_violation(attempt, violation):
                for pid in tree if group is None else ():
                    trees.signal_marked(pid, self._mark, signal.SIGKILL)
                if group:
                    group.kill()
        return bool(limited)

    def _kill_for_violation(self, attempt: RunningAttempt, violation: LimitViolation) -> bool:
        """Kill the leader's process group for a violation; False: the attempt has ended before.

        Safe against pid reuse: the leader has not been reaped while `exit_status` is None.
        """
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
        """Advance the ends of due attempts; one scan serves all that have no cgroup."""
        with self._supervisor.lock:
            running = {key: self._supervisor.running[key] for key in due if key in self._supervisor.running}
        # First, before the scan: leaders get their signal in time even if the scan takes long.
        self._supervisor.signal_leaders(due)
        groups = {key: attempt.cgroup for key, attempt in running.items() if attempt.cgroup}
        with contextlib.ExitStack() as frozen:
            marked = self._find_processes(frozen) if len(groups) < len(due) else []
            self._signal_trees(due, groups, marked)
        self._supervisor.start_admitted()

    def _find_processes(self, frozen: contextlib.ExitStack) -> list[MarkedProcess]:
        """Scan for marked processes; if forking ones delay that, freeze them until they are signalled."""
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
        for key, leader_exited in due.items():
            group = groups.get(key)
            tree = trees.with_groups(group.members()) if group else [(p.pid, p.group) for p in found[key]]
            signum, pids = self._supervisor.advance_termination(key, leader_exited=leader_exited, tree=tree)
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

        An orphan without a marker may belong to any attempt that ran when it was first seen: it is killed
        when the last of those has ended. Race: a child that was just spawned is not recorded yet, so an
        orphan is killed only when it was seen in two sweeps.
        """
        children = [child for child in trees.find_children() if child.pid not in self._namespace_pids]
        with self._supervisor.lock:
            live = frozenset(self._supervisor.running)
            by_pid = {pid: attempt.key for pid, attempt in self._supervisor.by_pid.items()}
            checks = self._supervisor.services.check_pids()
        before, suspects = self._orphans, {}
        give_up_at = time.monotonic() + SCAN_SECONDS  # the others wait for the next sweep
        for child in children:
            owners = before.get(child)
            if owners is None and child.pid not in by_pid and time.monotonic() < give_up_at:
                owners = self._owners(child, by_pid, live)
            if owners is not None and child.pid not in by_pid:
                suspects[child] = owners
        self._orphans = suspects
        for child, owners in suspects.items():
            is_orphan = not owners & live or (
                child.pid not in checks and trees.is_check(child.pid, self._mark)
            )
            if child in before and is_orphan:
                trees.signal_child(child, signal.SIGKILL)
        return bool(live or suspects)

    def _owners(
        self, child: ChildProcess, by_pid: dict[int, AttemptKey], live: frozenset[AttemptKey]
    ) -> frozenset[AttemptKey]:
        key = trees.attempt_key(child.pid, self._mark) or by_pid.get(child.session)
        return frozenset([key]) if key else live
