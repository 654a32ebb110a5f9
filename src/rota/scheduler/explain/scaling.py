"""An elastic cluster -> text on machines being added, and on what keeps it from growing."""

from rota.model.cluster import DEFAULT, ClusterIntent, ClusterRecord, Machine
from rota.model.job import JobSpec
from rota.model.outlook import WaitReason
from rota.model.shape import Op
from rota.model.view import View
from rota.rules.cluster_matching import could_provision

_NODE_LABEL = "node"  # the label whose value is the node's name


def describe_scaling(view: View, name: str) -> list[str]:
    machines = [machine for machine in view.machines.values() if machine.cluster == name]
    intent, cluster = view.cluster_intents.get(name, ClusterIntent(name)), view.clusters.get(name)
    coming = sum(machine.is_being_created for machine in machines)
    texts = [f"{coming} {'is' if coming == 1 else 'are'} on the way"] if coming else []
    is_full = not intent.by_hand and sum(1 + machine.extra for machine in machines) >= intent.max_nodes
    first = next((machine for machine in machines if machine.is_being_removed and is_full), None)
    if cluster is not None and cluster.reason is not None and (first is None or first.stuck is None):
        texts.append(cluster.reason)
    if first is not None:
        texts.append(_describe_leaving(first, intent.max_nodes))
    return texts


def _describe_leaving(machine: Machine, most: int) -> str:
    head = f"its only machine, {machine.name}," if most == 1 else f"of at most {most} machines {machine.name}"
    reason = machine.stuck or machine.reason
    return f"{head} still has to go" + (f": {reason}" if reason else "")


def scaling_reasons(view: View, name: str) -> list[WaitReason]:
    """Reasons for a job that fits on no existing node."""
    intent, texts = view.cluster_intents.get(name, ClusterIntent(name)), describe_scaling(view, name)
    if intent.by_hand:
        return []
    machines = [machine for machine in view.machines.values() if machine.cluster == name]
    if not texts and len(machines) >= intent.max_nodes:
        texts = [f"it has the most nodes that it may have, {intent.max_nodes}"]
    text = f"cluster {name} grows by itself: {'; '.join(texts)}"
    return [WaitReason("cluster", len(machines), intent.max_nodes, text)] if texts else []


def new_node_would_help(view: View, spec: JobSpec) -> bool:
    """Whether a task of it might run on a new node, whatever its capacity and labels.

    The name of an existing node is taken, and on a new node no other job runs that it has to be near to.
    """
    taken = {node.spec.name for node in view.nodes.values()} if spec.where else set()
    named = [
        constraint
        for constraint in spec.where
        if constraint.label == _NODE_LABEL and constraint.op in (Op.EQUAL, Op.IN)
    ]
    if any(set(constraint.values) <= taken for constraint in named):
        return False
    others = [term for term in spec.near if term.weight is None and term.over == _NODE_LABEL]
    return all(term.jobs.holds(spec.selector_labels) for term in others)


def command_for_new_node(view: View, spec: JobSpec) -> str | None:
    """The command that adds a suitable node; None: the cluster adds one by itself."""
    name = spec.home
    intent, cluster = (
        view.cluster_intents.get(name, ClusterIntent(name)),
        view.clusters.get(name, ClusterRecord(name)),
    )
    machines = [machine for machine in view.machines.values() if machine.cluster == name]
    fails = cluster.reason is not None or any(machine.stuck is not None for machine in machines)
    if intent.by_hand or fails or not could_provision(cluster, intent, spec):
        return "rota node token" + ("" if name == DEFAULT else f" --cluster {name}")
    resize = f"rota cluster resize {cluster.like or name}"
    if intent.nodes is not None:
        return f"{resize} --nodes auto"
    moves = any(machine.is_being_created or machine.is_being_removed for machine in machines)
    is_full = len(machines) >= intent.max_nodes
    return f"{resize} --max {intent.max_nodes + 1}" if is_full and not moves else None
