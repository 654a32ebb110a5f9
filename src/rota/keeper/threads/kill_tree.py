"""Kill a process tree that forks faster than it can be enumerated."""

import signal
from collections.abc import Sequence
from functools import partial

from rota.keeper.limits.cgroups import Cgroup, Cgroups
from rota.keeper.process import trees
from rota.keeper.process.trees import MarkedProcess
from rota.keeper.resources.reservations import AttemptKey

TREE_PROCESSES_MIN = 8  # smaller trees are killed one by one
PASSES_MAX = 100


class TreeKiller:
    """Ends trees of attempts without a cgroup, in the sweeper thread."""

    def __init__(self, mark: str, cgroups: Cgroups) -> None:
        self._mark = mark
        self._cgroups = cgroups

    def kill(self, key: AttemptKey, seen: Sequence[MarkedProcess]) -> None:
        """Kill the tree of an attempt; `seen` is the last scan of it. A scan costs as much as the signals."""
        if any(process.is_busy for process in seen):
            seen = self._stop_all(key, seen)
        self._signal(seen, signal.SIGKILL)
        self._freeze_others(key, {process.pid for process in seen})

    def _stop_all(self, key: AttemptKey, seen: Sequence[MarkedProcess]) -> Sequence[MarkedProcess]:
        """Stop all processes before any is killed.

        Race: at the process limit, a killed process lets another fork. A stopped one still counts and does
        not fork. SIGSTOP takes a tenth of the time of freezing.
        """
        stopped: set[int] = set()
        # Bounded: a tree that forks faster than it can be stopped is left to the freezer below.
        for _ in range(PASSES_MAX):
            others = [process for process in seen if process.pid not in stopped]
            if not others:
                break
            self._signal(others, signal.SIGSTOP)
            stopped |= {process.pid for process in others}
            seen = self._members(key)
        return seen

    def _freeze_others(self, key: AttemptKey, killed: set[int]) -> None:
        """Move processes that were missed, or continued by a sibling, into a frozen cgroup, and kill it."""
        frozen: Cgroup | None = None
        for _ in range(PASSES_MAX):
            caught = set(frozen.members()) if frozen else set()
            left = [process for process in self._members(key) if process.pid not in caught | killed]
            if not left:
                break
            frozen = frozen or self._freeze_group(key)
            if frozen is None:
                self._signal(left, signal.SIGKILL)
                continue
            for process in left:
                frozen.add_process(process.pid, partial(trees.belongs_to, process.pid, key, self._mark))
        if frozen:
            self._cgroups.kill_and_remove(frozen)

    def _signal(self, members: Sequence[MarkedProcess], signum: int) -> None:
        for process in members:
            trees.signal_marked(process.pid, self._mark, signum)

    def _members(self, key: AttemptKey) -> list[MarkedProcess]:
        return [process for process in trees.find_marked(self._mark) if process.key == key]

    def _freeze_group(self, key: AttemptKey) -> Cgroup | None:
        try:
            return self._cgroups.freeze_group(key)
        except OSError:  # no cgroup can be created: then they are only killed
            return None
