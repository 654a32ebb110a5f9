"""A cluster whose machines are made for it -> what is on its way, what keeps it from growing, in words."""

from rota.model.cluster import DEFAULT, ClusterIntent, ClusterRecord, Machine
from rota.model.job import JobSpec
from rota.model.outlook import WaitReason
from rota.model.shape import Op
from rota.model.view import View
from rota.rules.cluster_matching import could_provision

_NODE_LABEL = "node"  # the label that is a node's own name


def describe_scaling(view: View, name: str) -> list[str]:
    machines = [one for one in view.machines.values() if one.cluster == name]
    wish, cluster = view.cluster_intents.get(name, ClusterIntent(name)), view.clusters.get(name)
    coming = sum(one.comes for one in machines)
    words = [f"{coming} {'is' if coming == 1 else 'are'} on the way"] if coming else []
    is_full = not wish.by_hand and sum(1 + one.extra for one in machines) >= wish.max_nodes
    first = next((one for one in machines if one.goes and is_full), None)
    if cluster is not None and cluster.reason is not None and (first is None or first.stuck is None):
        words.append(cluster.reason)
    if first is not None:
        words.append(_describe_leaving(first, wish.max_nodes))
    return words


def _describe_leaving(machine: Machine, most: int) -> str:
    head = f"its only machine, {machine.name}," if most == 1 else f"of at most {most} machines {machine.name}"
    reason = machine.stuck or machine.reason
    return f"{head} still has to go" + (f": {reason}" if reason else "")


def scaling_reasons(view: View, name: str) -> list[WaitReason]:
    """For a job that finds no room on the nodes there are."""
    wish, words = view.cluster_intents.get(name, ClusterIntent(name)), describe_scaling(view, name)
    if wish.by_hand:
        return []
    machines = [one for one in view.machines.values() if one.cluster == name]
    if not words and len(machines) >= wish.max_nodes:
        words = [f"it has the most nodes that it may have, {wish.max_nodes}"]
    text = f"cluster {name} grows by itself: {'; '.join(words)}"
    return [WaitReason("cluster", len(machines), wish.max_nodes, text)] if words else []


def new_node_would_help(view: View, spec: JobSpec) -> bool:
    """Whether a task of it might run on a node that is not there yet, whatever that node has.

    The name of a node that is there is taken, and on a new node no other job runs that it has to be near to.
    """
    taken = {node.spec.name for node in view.nodes.values()} if spec.where else set()
    named = [one for one in spec.where if one.label == _NODE_LABEL and one.op in (Op.EQUAL, Op.IN)]
    if any(set(one.values) <= taken for one in named):
        return False
    others = [one for one in spec.near if one.weight is None and one.over == _NODE_LABEL]
    return all(one.jobs.holds(spec.selector_labels) for one in others)


def command_for_new_node(view: View, spec: JobSpec) -> str | None:
    """A command that lets a node come which would do; None: one comes by itself."""
    name = spec.home
    wish, cluster = (
        view.cluster_intents.get(name, ClusterIntent(name)),
        view.clusters.get(name, ClusterRecord(name)),
    )
    machines = [one for one in view.machines.values() if one.cluster == name]
    fails = cluster.reason is not None or any(one.stuck is not None for one in machines)
    if wish.by_hand or fails or not could_provision(cluster, wish, spec):
        return "rota node token" + ("" if name == DEFAULT else f" --cluster {name}")
    resize = f"rota cluster resize {cluster.like or name}"
    if wish.nodes is not None:
        return f"{resize} --nodes auto"
    moves = any(one.comes or one.goes for one in machines)
    is_full = len(machines) >= wish.max_nodes
    return f"{resize} --max {wish.max_nodes + 1}" if is_full and not moves else None
