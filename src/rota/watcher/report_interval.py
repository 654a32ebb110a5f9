"""How much is going on -> how often a node tells how busy it is; how many nodes -> how they return."""

from typing import NamedTuple

from rota.model.ids import NodeId
from rota.model.limits import REPORT_LEAST_MS, REPORT_MOST_MS, REPORTS_PER_SECOND, SPREAD_MS
from rota.model.node import ReportInterval
from rota.model.view import View


class IntervalBounds(NamedTuple):
    least_ms: int = REPORT_LEAST_MS
    most_ms: int = REPORT_MOST_MS


DEFAULT_BOUNDS = IntervalBounds()


def effective_bounds(set_by_controller: ReportInterval, configured: IntervalBounds) -> IntervalBounds:
    if not set_by_controller.most_ms:
        return configured
    return IntervalBounds(set_by_controller.least_ms, set_by_controller.most_ms)


def report_ms(view: View, node: NodeId, bounds: IntervalBounds) -> int:
    """Often while work waits for room, seldom where nothing runs; seldomer the more nodes there are."""
    if any(True for _ in view.pending_queues()):
        wanted = bounds.least_ms
    elif view.nodes[node].assigned:
        wanted = round((bounds.least_ms * bounds.most_ms) ** 0.5)
    else:
        wanted = bounds.most_ms
    crowded = len(view.nodes) * 1000 // REPORTS_PER_SECOND
    return min(bounds.most_ms, max(wanted, crowded))


def spread_ms(nodes: int, lost_ms: int) -> int:
    """Over how long they call when all have lost the server: in steps, so that it is not told at each join.

    Each must be heard before its silence makes it suspect, at half the time after which it is lost.
    """
    return min(SPREAD_MS << max(0, nodes - 1).bit_length(), lost_ms * 2 // 5)
