"""The brake: when many nodes fall silent at once, they are declared lost slowly, or not until confirmed.

Many silent nodes at once mean a network partition or an overloaded server rather than many dead machines.
Replacing all their tasks would run them twice and overload the other nodes.
"""

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
    """Number of nodes that fell silent together, and of nodes in total."""

    level: BrakeLevel = BrakeLevel.OFF
    silent: int = 0
    of: int = 0

    @property
    def at_once(self) -> int:
        """Number of nodes that may be declared lost in one step."""
        return max(1, self.of * BRAKE_STEP_PERCENT // 100)

    @property
    def sentence(self) -> str:
        what = f"{self.silent} of {self.of} nodes went silent within a minute"
        match self.level:
            case BrakeLevel.OFF:
                return "off: lost nodes are replaced immediately"
            case BrakeLevel.SLOWED:
                nodes = "1 node" if self.at_once == 1 else f"{self.at_once} nodes"
                rate = f"the work of {nodes} each {BRAKE_STEP_MS // 1000} s"
                return f"slowed: {what}; {rate} is started elsewhere until they return"
            case BrakeLevel.STOPPED:
                confirmed = "an operator confirms that they are lost (rota node brake --release)"
                until = f"until they return or {confirmed}"
                return f"stopped: {what}; nothing of theirs is started elsewhere {until}"


class ReturnedNodes(NamedTuple):
    """Nodes that fell silent together with a node and have returned: how many, and when the last one did."""

    nodes: int = 0
    latest_ms: int = 0


class SilentNodes:
    """Silent nodes at one moment, in the order in which they fell silent."""

    def __init__(self, view: View) -> None:
        self._present = 0  # not declared lost
        self._silent: list[tuple[int, NodeId]] = []
        self._lost_ms: list[int] = []
        ended: list[tuple[int, int]] = []
        for node, entry in view.nodes.items():
            status = entry.status
            # Nodes that went on purpose are no sign of a partition, and would dilute
            # the share of silent ones.
            if status is None or status.state is NodeState.LEFT or entry.revoked:
                continue
            if status.silent_at_ms is not None:
                self._silent.append((status.silent_at_ms, node))
            # A silence that ended still counts for the grace period of nodes that fell silent together with
            # this one.
            elif status.last_silence is not None:
                ended.append(status.last_silence)
            if status.state is not NodeState.LOST:
                self._present += 1
            elif status.silent_at_ms is not None:
                self._lost_ms.append(status.silent_at_ms)
        self._silent.sort()
        self._lost_ms.sort()
        self._at_ms = [at_ms for at_ms, _ in self._silent]
        self._together = _together(self._at_ms)
        self._returned = _returned(self._at_ms, sorted(ended))

    @property
    def all_declared_lost(self) -> bool:
        """Whether every silent node is already declared lost."""
        return len(self._silent) == len(self._lost_ms)

    def around(self, node: NodeId, at_ms: int) -> BrakeState:
        """State of the brake for a node that fell silent at this time."""
        silent = self._together[bisect_left(self._silent, (at_ms, node))]
        early_ms, late_ms = at_ms - BRAKE_WINDOW_MS, at_ms + BRAKE_WINDOW_MS
        lost = bisect_right(self._lost_ms, late_ms) - bisect_left(self._lost_ms, early_ms)
        # Nodes lost in this window still count: as they are declared lost, the share must
        # not shrink and release the brake.
        of = self._present + lost
        if not _is_many(silent, of):
            return BrakeState(BrakeLevel.OFF, silent, of)
        stops = silent * 100 >= of * BRAKE_STOP_PERCENT
        return BrakeState(BrakeLevel.STOPPED if stops else BrakeLevel.SLOWED, silent, of)

    def lost_at_ms(self, node: NodeView, lost_ms: int) -> int | None:
        """When a silent node is declared lost, as things stand; None: not before something changes.

        When nodes that fell silent with it return, its grace period restarts: it may be about to return too.
        """
        at_ms = _silent_at_ms(node)
        # An operator's word overrides the brake: it is what a stopped brake waits for.
        if at_ms is None or is_confirmed_gone(node):
            return 0
        if (at_ms, node.spec.id) not in self:
            return None  # it fell silent after this snapshot was taken
        brake = self.around(node.spec.id, at_ms)
        at = bisect_left(self._silent, (at_ms, node.spec.id))
        returned = self._returned[at]
        is_last = returned.nodes and _is_many(brake.silent + returned.nodes, brake.of)
        grace_ends_ms = returned.latest_ms + lost_ms if is_last else 0
        match brake.level:
            case BrakeLevel.OFF:
                return grace_ends_ms
            case BrakeLevel.SLOWED:
                first = bisect_left(self._at_ms, at_ms - BRAKE_WINDOW_MS)
                position = at - first
                # Derived from stored times and not from a counter, so that a new leader
                # continues at the same pace.
                slowed_ms = self._at_ms[first] + lost_ms + position // brake.at_once * BRAKE_STEP_MS
                return max(slowed_ms, grace_ends_ms)
            case BrakeLevel.STOPPED:
                return None

    def worst(self, view: View) -> BrakeState:
        """The strongest brake on any node that is silent and not declared lost."""
        found = BrakeState()
        for at_ms, name in self._silent:
            node = view.nodes.get(name)
            if node is None or node.status is None or node.status.state is not NodeState.SUSPECT:
                continue
            if not is_confirmed_gone(node):
                state = self.around(name, at_ms)
                found = max(found, state, key=lambda brake: (_RANK[brake.level], brake.silent))
        return found if found.level is not BrakeLevel.OFF else BrakeState()

    def __contains__(self, silence: tuple[int, NodeId]) -> bool:
        at = bisect_left(self._silent, silence)
        return at < len(self._silent) and self._silent[at] == silence


_RANK = {level: rank for rank, level in enumerate(BrakeLevel)}


def is_confirmed_gone(node: NodeView) -> bool:
    """Whether an operator confirmed the loss during the current silence, or the node is revoked."""
    if node.revoked:
        return True
    at_ms, confirmed_ms = _silent_at_ms(node), None if node.intent is None else node.intent.gone_at_ms
    # A confirmation holds for the silence it was given in: after the node has returned,
    # it says nothing about the next.
    return at_ms is not None and confirmed_ms is not None and confirmed_ms > at_ms


def _silent_at_ms(node: NodeView) -> int | None:
    return None if node.status is None else node.status.silent_at_ms


def _is_many(silent: int, of: int) -> bool:
    # Both: in a cluster of three nodes one dead machine is a third of all, and no sign of a partition.
    return silent >= BRAKE_NODES and silent * 100 >= of * BRAKE_SLOW_PERCENT


def _together(at_ms: list[int]) -> list[int]:
    """For each time, the most silences in one window that includes it; `at_ms` is sorted."""
    counts = [bisect_right(at_ms, start + BRAKE_WINDOW_MS) - at for at, start in enumerate(at_ms)]
    found: list[int] = []
    starts: deque[int] = deque()  # starts of windows that include it, by decreasing count
    for at, now_ms in enumerate(at_ms):
        while starts and counts[starts[-1]] <= counts[at]:
            starts.pop()
        starts.append(at)
        while at_ms[starts[0]] < now_ms - BRAKE_WINDOW_MS:
            starts.popleft()
        found.append(counts[starts[0]])
    return found


def _returned(at_ms: list[int], ended: list[tuple[int, int]]) -> list[ReturnedNodes]:
    """For each silence, the ended silences that started within a window around it; both lists are sorted."""
    found: list[ReturnedNodes] = []
    latest: deque[tuple[int, int]] = deque()  # silences of the window, by decreasing end
    first = end = 0
    for now_ms in at_ms:
        while end < len(ended) and ended[end][0] <= now_ms + BRAKE_WINDOW_MS:
            while latest and latest[-1][1] <= ended[end][1]:
                latest.pop()
            latest.append(ended[end])
            end += 1
        while first < end and ended[first][0] < now_ms - BRAKE_WINDOW_MS:
            first += 1
        while latest and latest[0][0] < now_ms - BRAKE_WINDOW_MS:
            latest.popleft()
        found.append(ReturnedNodes(end - first, latest[0][1]) if latest else ReturnedNodes())
    return found
