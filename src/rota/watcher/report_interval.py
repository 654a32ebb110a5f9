"""Pending work and cluster size -> load report interval of a node, and reconnect spread."""

from typing import NamedTuple

from rota.model.ids import NodeId
from rota.model.limits import REPORT_LEAST_MS, REPORT_MOST_MS, REPORTS_PER_SECOND, SPREAD_MS
from rota.model.node import ReportInterval
from rota.model.view import View


class IntervalBounds(NamedTuple):
    """The shortest and the longest load report interval."""

    least_ms: int = REPORT_LEAST_MS
    most_ms: int = REPORT_MOST_MS


DEFAULT_BOUNDS = IntervalBounds()


def effective_bounds(set_by_controller: ReportInterval, configured: IntervalBounds) -> IntervalBounds:
    if not set_by_controller.most_ms:
        return configured
    return IntervalBounds(set_by_controller.least_ms, set_by_controller.most_ms)


def report_ms(view: View, node: NodeId, bounds: IntervalBounds) -> int:
    """Short while tasks are pending, long for idle nodes, and longer the more nodes there are."""
    if any(True for _ in view.pending_queues()):
        interval = bounds.least_ms
    elif view.nodes[node].assigned:
        interval = round((bounds.least_ms * bounds.most_ms) ** 0.5)
    else:
        interval = bounds.most_ms
    floor_ms = len(view.nodes) * 1000 // REPORTS_PER_SECOND
    return min(bounds.most_ms, max(interval, floor_ms))


def spread_ms(nodes: int, lost_ms: int) -> int:
    """Time over which all nodes spread their reconnects after they have lost the server.

    It doubles with the number of nodes in steps, so that most joins do not change it. The bound lets each
    node reconnect before its silence makes it suspect, at half of `lost_ms`.
    """
    return min(SPREAD_MS << max(0, nodes - 1).bit_length(), lost_ms * 2 // 5)
