"""The many processes of one attempt, of which some may fork all the time -> none of them."""

import signal
from collections.abc import Sequence
from functools import partial

from rota.keeper.limits.cgroups import Group, Groups
from rota.keeper.process import trees
from rota.keeper.process.trees import Marked
from rota.keeper.rules import Key

LEAST = 8  # fewer are killed one by one
PASSES = 100


class Crowds:
    def __init__(self, mark: str, groups: Groups) -> None:
        self._mark = mark
        self._groups = groups

    def kill(self, key: Key, seen: Sequence[Marked]) -> None:
        """`seen`: those of one look at the machine; each look at many costs as much as to signal them."""
        if any(one.is_busy for one in seen):
            seen = self._hold(key, seen)
        self._signal(seen, signal.SIGKILL)
        self._trap_others(key, {one.pid for one in seen})

    def _hold(self, key: Key, seen: Sequence[Marked]) -> Sequence[Marked]:
        """Each one killed would make room for another; one that is stopped keeps its place and makes no more.

        That takes a tenth of the time that it takes to freeze it.
        """
        held: set[int] = set()
        for _ in range(PASSES):
            others = [one for one in seen if one.pid not in held]
            if not others:
                break
            self._signal(others, signal.SIGSTOP)
            held |= {one.pid for one in others}
            seen = self._members(key)
        return seen

    def _trap_others(self, key: Key, killed: set[int]) -> None:
        """Those that were missed, or woken: who is frozen is so for good."""
        trap: Group | None = None
        for _ in range(PASSES):
            caught = set(trap.members()) if trap else set()
            left = [one for one in self._members(key) if one.pid not in caught | killed]
            if not left:
                break
            trap = trap or self._trap(key)
            if trap is None:
                self._signal(left, signal.SIGKILL)
                continue
            for one in left:
                trap.catch(one.pid, partial(trees.is_of, one.pid, key, self._mark))
        if trap:
            self._groups.end(trap)

    def _signal(self, members: Sequence[Marked], signum: int) -> None:
        for one in members:
            trees.signal_marked(one.pid, self._mark, signum)

    def _members(self, key: Key) -> list[Marked]:
        return [one for one in trees.find_marked(self._mark) if one.key == key]

    def _trap(self, key: Key) -> Group | None:
        try:
            return self._groups.trap(key)
        except OSError:  # the kernel has no more groups to give: then they are only killed
            return None
