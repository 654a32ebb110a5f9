"""The eviction brake: while half of all nodes are silent at once, none is lost unless confirmed as gone."""

from collections.abc import Mapping
from typing import Any

from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import BRAKE_NODES, BRAKE_STOP_PERCENT, BRAKE_WINDOW_MS
from rota.model.node import NodeIntent, NodeStatus
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World

_ABSENT = (NodeState.SUSPECT, NodeState.LOST)


class BrakeChecks:
    """Recomputes the brake from the records, for every possible window."""

    def __init__(self, known: Mapping[str, Any], world: World) -> None:
        self._known = known
        self._world = world

    def check_lost(self, node: NodeId, fresh: Mapping[str, Any]) -> None:
        """`node` is declared lost; compare with the node statuses before this commit."""
        before = self._known.get(f"node/{node}/status")
        if before is None or before.silent_at_ms is None or self._is_confirmed_gone(before, fresh):
            return
        statuses = [record for record in self._known.values() if isinstance(record, NodeStatus)]
        statuses = [status for status in statuses if not _has_returned(status, fresh)]
        at_ms = [
            status.silent_at_ms
            for status in statuses
            if status.state in _ABSENT and status.silent_at_ms is not None
        ]
        lost_ms = [status.silent_at_ms or 0 for status in statuses if status.state is NodeState.LOST]
        present = sum(status.state in (NodeState.READY, NodeState.SUSPECT) for status in statuses)
        # Nodes that joined or returned in the same commit counted when the server decided.
        present += sum(
            isinstance(record, NodeStatus) and record.state is NodeState.READY for record in fresh.values()
        )
        for start_ms in at_ms:
            silent = sum(start_ms <= silent_ms <= start_ms + BRAKE_WINDOW_MS for silent_ms in at_ms)
            total = present + sum(
                abs(silent_ms - before.silent_at_ms) <= BRAKE_WINDOW_MS for silent_ms in lost_ms
            )
            holds = silent >= BRAKE_NODES and silent * 100 >= total * BRAKE_STOP_PERCENT
            if holds and start_ms <= before.silent_at_ms <= start_ms + BRAKE_WINDOW_MS:
                raise InvariantBroken(
                    f"{node} was declared lost while {silent} of {total} nodes were silent at once"
                )

    def _is_confirmed_gone(self, status: NodeStatus, fresh: Mapping[str, Any]) -> bool:
        key = f"node/{status.id}/wish"
        intent: NodeIntent | None = fresh.get(key) or self._known.get(key)
        confirmed_ms = None if intent is None else intent.gone_at_ms
        return (
            confirmed_ms is not None
            and status.silent_at_ms is not None
            and confirmed_ms > status.silent_at_ms
        )


def _has_returned(status: NodeStatus, fresh: Mapping[str, Any]) -> bool:
    now = fresh.get(status.key)
    return now is not None and now.state in (NodeState.READY, NodeState.LEFT)
