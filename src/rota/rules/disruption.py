"""Many nodes silent at once -> their work is started elsewhere slowly, or only when an operator says so."""

from bisect import bisect_left, bisect_right
from collections import deque
from enum import StrEnum
from typing import NamedTuple

from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import (
    BRAKE_NODES,
    BRAKE_SLOW_PERCENT,
    BRAKE_STEP_MS,
    BRAKE_STEP_PERCENT,
    BRAKE_STOP_PERCENT,
    BRAKE_WINDOW_MS,
)
from rota.model.view import NodeView, View


class BrakeLevel(StrEnum):
    OFF = "off"
    SLOWED = "slowed"
    STOPPED = "stopped"


class BrakeState(NamedTuple):
    """How many nodes went silent together, of how many that were there."""

    level: BrakeLevel = BrakeLevel.OFF
    silent: int = 0
    of: int = 0

    @property
    def at_once(self) -> int:
        """Nodes that may be given up in one step."""
        return max(1, self.of * BRAKE_STEP_PERCENT // 100)

    @property
    def sentence(self) -> str:
        what = f"{self.silent} of {self.of} nodes went silent within a minute"
        match self.level:
            case BrakeLevel.OFF:
                return "off: nodes that are lost are replaced at once"
            case BrakeLevel.SLOWED:
                nodes = "1 node" if self.at_once == 1 else f"{self.at_once} nodes"
                pace = f"the work of {nodes} each {BRAKE_STEP_MS // 1000} s"
                return f"slowed: {what}; {pace} is started elsewhere until they return"
            case BrakeLevel.STOPPED:
                gone = "somebody says that they are gone (rota node brake --release)"
                return f"stopped: {what}; nothing of theirs is started elsewhere until they return or {gone}"


class ReturnedNodes(NamedTuple):
    """Of those who fell silent with a node: how many are heard again, and since when the last of them."""

    nodes: int = 0
    latest_ms: int = 0


class SilentNodes:
    """Who is silent at one moment, in the order in which they fell silent."""

    def __init__(self, view: View) -> None:
        self._there = 0  # not given up
        self._silent: list[tuple[int, NodeId]] = []
        self._lost_ms: list[int] = []
        over: list[tuple[int, int]] = []
        for node, entry in view.nodes.items():
            status = entry.status
            if status is None or status.state is NodeState.LEFT or entry.revoked:
                continue
            if status.silent_at_ms is not None:
                self._silent.append((status.silent_at_ms, node))
            elif status.last_silence is not None:
                over.append(status.last_silence)
            if status.state is not NodeState.LOST:
                self._there += 1
            elif status.silent_at_ms is not None:
                self._lost_ms.append(status.silent_at_ms)
        self._silent.sort()
        self._lost_ms.sort()
        self._at_ms = [at_ms for at_ms, _ in self._silent]
        self._together = _together(self._at_ms)
        self._returned = _returned(self._at_ms, sorted(over))

    @property
    def all_declared_lost(self) -> bool:
        """Nobody is silent who is not given up."""
        return len(self._silent) == len(self._lost_ms)

    def around(self, node: NodeId, at_ms: int) -> BrakeState:
        """What a node that fell silent then is part of."""
        silent = self._together[bisect_left(self._silent, (at_ms, node))]
        early_ms, late_ms = at_ms - BRAKE_WINDOW_MS, at_ms + BRAKE_WINDOW_MS
        lost = bisect_right(self._lost_ms, late_ms) - bisect_left(self._lost_ms, early_ms)
        of = self._there + lost
        if not _is_many(silent, of):
            return BrakeState(BrakeLevel.OFF, silent, of)
        stops = silent * 100 >= of * BRAKE_STOP_PERCENT
        return BrakeState(BrakeLevel.STOPPED if stops else BrakeLevel.SLOWED, silent, of)

    def lost_at_ms(self, node: NodeView, lost_ms: int) -> int | None:
        """When a silent node is given up, as things stand; None: not before something changes.

        Where those return that fell silent with it, it has its grace anew: it may be the last of them.
        """
        at_ms = _silent_at_ms(node)
        if at_ms is None or is_confirmed_gone(node):
            return 0
        if (at_ms, node.spec.id) not in self:
            return None  # it fell silent after these were counted
        brake = self.around(node.spec.id, at_ms)
        place = bisect_left(self._silent, (at_ms, node.spec.id))
        returned = self._returned[place]
        is_last = returned.nodes and _is_many(brake.silent + returned.nodes, brake.of)
        anew_ms = returned.latest_ms + lost_ms if is_last else 0
        match brake.level:
            case BrakeLevel.OFF:
                return anew_ms
            case BrakeLevel.SLOWED:
                first = bisect_left(self._at_ms, at_ms - BRAKE_WINDOW_MS)
                turn = place - first
                slowly_ms = self._at_ms[first] + lost_ms + turn // brake.at_once * BRAKE_STEP_MS
                return max(slowly_ms, anew_ms)
            case BrakeLevel.STOPPED:
                return None

    def worst(self, view: View) -> BrakeState:
        """Of all that hold nodes which are silent and not given up."""
        found = BrakeState()
        for at_ms, name in self._silent:
            node = view.nodes.get(name)
            if node is None or node.status is None or node.status.state is not NodeState.SUSPECT:
                continue
            if not is_confirmed_gone(node):
                one = self.around(name, at_ms)
                found = max(found, one, key=lambda brake: (_RANK[brake.level], brake.silent))
        return found if found.level is not BrakeLevel.OFF else BrakeState()

    def __contains__(self, one: tuple[int, NodeId]) -> bool:
        at = bisect_left(self._silent, one)
        return at < len(self._silent) and self._silent[at] == one


_RANK = {level: rank for rank, level in enumerate(BrakeLevel)}


def is_confirmed_gone(node: NodeView) -> bool:
    """An operator's word holds for the silence in which it was said; that it is revoked holds for ever."""
    if node.revoked:
        return True
    at_ms, said_ms = _silent_at_ms(node), None if node.intent is None else node.intent.gone_at_ms
    return at_ms is not None and said_ms is not None and said_ms > at_ms


def _silent_at_ms(node: NodeView) -> int | None:
    return None if node.status is None else node.status.silent_at_ms


def _is_many(silent: int, of: int) -> bool:
    return silent >= BRAKE_NODES and silent * 100 >= of * BRAKE_SLOW_PERCENT


def _together(at_ms: list[int]) -> list[int]:
    """Of each the most that fell silent in one window with it: times are in order."""
    counts = [bisect_right(at_ms, start + BRAKE_WINDOW_MS) - at for at, start in enumerate(at_ms)]
    found: list[int] = []
    starts: deque[int] = deque()  # of windows it is in, those that hold more before those that hold fewer
    for at, now_ms in enumerate(at_ms):
        while starts and counts[starts[-1]] <= counts[at]:
            starts.pop()
        starts.append(at)
        while at_ms[starts[0]] < now_ms - BRAKE_WINDOW_MS:
            starts.popleft()
        found.append(counts[starts[0]])
    return found


def _returned(at_ms: list[int], over: list[tuple[int, int]]) -> list[ReturnedNodes]:
    """For each that is silent, of the silences that are over and began at about its time; all in order."""
    found: list[ReturnedNodes] = []
    latest: deque[tuple[int, int]] = deque()  # in the window, those that ended later before the others
    first = end = 0
    for now_ms in at_ms:
        while end < len(over) and over[end][0] <= now_ms + BRAKE_WINDOW_MS:
            while latest and latest[-1][1] <= over[end][1]:
                latest.pop()
            latest.append(over[end])
            end += 1
        while first < end and over[first][0] < now_ms - BRAKE_WINDOW_MS:
            first += 1
        while latest and latest[0][0] < now_ms - BRAKE_WINDOW_MS:
            latest.popleft()
        found.append(ReturnedNodes(end - first, latest[0][1]) if latest else ReturnedNodes())
    return found
