"""A system job -> the nodes on which its tasks do not run, and why."""

from rota.model.lifecycle import NodeState
from rota.model.limits import BLOCK_TASKS
from rota.model.phase import Phase
from rota.model.plan import Instant
from rota.model.view import JobView, NodeView, View
from rota.model.why import Reason, Why
from rota.scheduler.words import few


def missing_on(view: View, job: JobView, doing: str, now: Instant) -> Why:
    if not job.pinned:
        text = "no open node fits its conditions" if view.nodes else "no node has joined"
        return Why(True, f"waits: {text}", (Reason("nodes", 0, len(view.nodes), text),))
    groups: dict[str, list[str]] = {}
    ready = set(job.ready(now.ms, job.spec.count))
    for node_id, index in job.pinned.items():
        node = view.nodes.get(node_id)
        if node is not None and _phase(job, index) is Phase.PENDING:
            groups.setdefault(_why(node, paused=index not in ready), []).append(node.spec.name)
    reasons = tuple(
        Reason("node", len(names), len(job.pinned), f"not on {few(names)}: {why}")
        for why, names in groups.items()
    )
    told = "; ".join(one.text for one in reasons)
    return Why(bool(reasons), "; ".join(filter(None, (doing, told))), reasons)


def _phase(job: JobView, index: int) -> Phase:
    block, position = divmod(index, BLOCK_TASKS)
    return Phase(job.phases[block][position]) if block in job.phases else Phase.PENDING


def _why(node: NodeView, *, paused: bool) -> str:
    if node.status is None or node.status.state is not NodeState.READY:
        return "it has not connected yet" if node.status is None else f"it is {node.status.state}"
    if node.drains:
        return "it is drained"
    if node.wish is not None and node.wish.eligibility.value != "open":
        return f"it is {node.wish.eligibility}"
    return "a pause before the next start" if paused else "there is no room now"
