"""The many processes of one attempt, of which some may fork all the time -> none of them."""

import signal
from collections.abc import Sequence
from functools import partial

from rota.keeper.limits.cgroups import Cgroup, Cgroups
from rota.keeper.process import trees
from rota.keeper.process.trees import MarkedProcess
from rota.keeper.resources.reservations import AttemptKey

TREE_PROCESSES_MIN = 8  # fewer are killed one by one
PASSES_MAX = 100


class TreeKiller:
    def __init__(self, mark: str, cgroups: Cgroups) -> None:
        self._mark = mark
        self._cgroups = cgroups

    def kill(self, key: AttemptKey, seen: Sequence[MarkedProcess]) -> None:
        """`seen`: those of one look at the machine; each look at many costs as much as to signal them."""
        if any(one.is_busy for one in seen):
            seen = self._stop_all(key, seen)
        self._signal(seen, signal.SIGKILL)
        self._freeze_others(key, {one.pid for one in seen})

    def _stop_all(self, key: AttemptKey, seen: Sequence[MarkedProcess]) -> Sequence[MarkedProcess]:
        """Each one killed would make room for another; one that is stopped keeps its place and makes no more.

        That takes a tenth of the time that it takes to freeze it.
        """
        held: set[int] = set()
        for _ in range(PASSES_MAX):
            others = [one for one in seen if one.pid not in held]
            if not others:
                break
            self._signal(others, signal.SIGSTOP)
            held |= {one.pid for one in others}
            seen = self._members(key)
        return seen

    def _freeze_others(self, key: AttemptKey, killed: set[int]) -> None:
        """Those that were missed, or woken: who is frozen is so for good."""
        trap: Cgroup | None = None
        for _ in range(PASSES_MAX):
            caught = set(trap.members()) if trap else set()
            left = [one for one in self._members(key) if one.pid not in caught | killed]
            if not left:
                break
            trap = trap or self._freeze_group(key)
            if trap is None:
                self._signal(left, signal.SIGKILL)
                continue
            for one in left:
                trap.add_process(one.pid, partial(trees.belongs_to, one.pid, key, self._mark))
        if trap:
            self._cgroups.kill_and_remove(trap)

    def _signal(self, members: Sequence[MarkedProcess], signum: int) -> None:
        for one in members:
            trees.signal_marked(one.pid, self._mark, signum)

    def _members(self, key: AttemptKey) -> list[MarkedProcess]:
        return [one for one in trees.find_marked(self._mark) if one.key == key]

    def _freeze_group(self, key: AttemptKey) -> Cgroup | None:
        try:
            return self._cgroups.freeze_group(key)
        except OSError:  # the kernel has no more groups to give: then they are only killed
            return None
