"""Nodes that fall silent together: while they are half of all, none is given up unless somebody said so."""

from collections.abc import Mapping
from typing import Any

from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import BRAKE_NODES, BRAKE_STOP_PERCENT, BRAKE_WINDOW_MS
from rota.model.node import NodeIntent, NodeStatus
from rota.sim.broken import InvariantBroken
from rota.sim.world import World

_ABSENT = (NodeState.SUSPECT, NodeState.LOST)


class BrakeChecks:
    def __init__(self, known: Mapping[str, Any], world: World) -> None:
        self._known = known
        self._world = world

    def given_up(self, node: NodeId, fresh: Mapping[str, Any]) -> None:
        """Held against what was on disk before, by looking at every window there is."""
        before = self._known.get(f"node/{node}/status")
        if before is None or before.silent_at_ms is None or self._is_said_gone(before, fresh):
            return
        statuses = [one for one in self._known.values() if isinstance(one, NodeStatus)]
        statuses = [one for one in statuses if not _has_returned(one, fresh)]
        at_ms = [
            one.silent_at_ms for one in statuses if one.state in _ABSENT and one.silent_at_ms is not None
        ]
        lost_ms = [one.silent_at_ms or 0 for one in statuses if one.state is NodeState.LOST]
        there = sum(one.state in (NodeState.READY, NodeState.SUSPECT) for one in statuses)
        # Nodes that joined or returned in the same commit counted when the server decided.
        there += sum(isinstance(one, NodeStatus) and one.state is NodeState.READY for one in fresh.values())
        for start_ms in at_ms:
            silent = sum(start_ms <= one <= start_ms + BRAKE_WINDOW_MS for one in at_ms)
            whole = there + sum(abs(one - before.silent_at_ms) <= BRAKE_WINDOW_MS for one in lost_ms)
            holds = silent >= BRAKE_NODES and silent * 100 >= whole * BRAKE_STOP_PERCENT
            if holds and start_ms <= before.silent_at_ms <= start_ms + BRAKE_WINDOW_MS:
                raise InvariantBroken(
                    f"{node} was given up while {silent} of {whole} nodes were silent at once"
                )

    def _is_said_gone(self, status: NodeStatus, fresh: Mapping[str, Any]) -> bool:
        key = f"node/{status.id}/wish"
        wish: NodeIntent | None = fresh.get(key) or self._known.get(key)
        said_ms = None if wish is None else wish.gone_at_ms
        return said_ms is not None and status.silent_at_ms is not None and said_ms > status.silent_at_ms


def _has_returned(status: NodeStatus, fresh: Mapping[str, Any]) -> bool:
    now = fresh.get(status.key)
    return now is not None and now.state in (NodeState.READY, NodeState.LEFT)
