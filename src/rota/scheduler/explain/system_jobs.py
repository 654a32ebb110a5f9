"""A system job -> the nodes on which its tasks do not run, and why."""

from rota.model.lifecycle import NodeState
from rota.model.limits import BLOCK_TASKS
from rota.model.outlook import Explanation, WaitReason
from rota.model.plan import Instant
from rota.model.view import JobView, NodeView, View
from rota.rules.phases import Phase
from rota.scheduler.explain.phrases import join_few


def explain_system_job(view: View, job: JobView, doing: str, now: Instant) -> Explanation:
    if not job.task_by_node:
        text = "no open node fits its conditions" if view.nodes else "no node has joined"
        return Explanation(True, f"waits: {text}", (WaitReason("nodes", 0, len(view.nodes), text),))
    groups: dict[str, list[str]] = {}
    ready = set(job.ready(now.ms, job.spec.count))
    for node_id, index in job.task_by_node.items():
        node = view.nodes.get(node_id)
        if node is not None and _phase(job, index) is Phase.PENDING:
            groups.setdefault(_describe_missing(node, paused=index not in ready), []).append(node.spec.name)
    reasons = tuple(
        WaitReason("node", len(names), len(job.task_by_node), f"not on {join_few(names)}: {why}")
        for why, names in groups.items()
    )
    told = "; ".join(one.text for one in reasons)
    return Explanation(bool(reasons), "; ".join(filter(None, (doing, told))), reasons)


def _phase(job: JobView, index: int) -> Phase:
    block, position = divmod(index, BLOCK_TASKS)
    return Phase(job.phases[block][position]) if block in job.phases else Phase.PENDING


def _describe_missing(node: NodeView, *, paused: bool) -> str:
    if node.status is None or node.status.state is not NodeState.READY:
        return "it has not connected yet" if node.status is None else f"it is {node.status.state}"
    if node.is_draining:
        return "it is drained"
    if node.intent is not None and node.intent.eligibility.value != "open":
        return f"it is {node.intent.eligibility}"
    return "a pause before the next start" if paused else "there is no room now"
