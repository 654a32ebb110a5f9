"""What a provider says of a machine + its record -> its next state, and what is told of it."""

from collections.abc import Iterable

from rota.model.cluster import MACHINE, ClusterIntent, ClusterRecord, Machine
from rota.model.ids import Key
from rota.model.lifecycle import MachineEvent, MachineState, NodeState
from rota.model.plan import NO_CHANGE, PROVIDER_SAID, EventRecord, Instant, Plan
from rota.model.view import NodeView, View

_NODE_RECORDS = ("spec", "wish", "status")  # of a node
_REASONS_MAX = 3  # decisions named in one line of the log


def on_create_requested(view: View, name: str, place: str, now: Instant) -> Plan[bool]:
    """Its provider is about to be asked for it; answers whether it is still wanted."""
    machine = view.machines.get(name)
    if machine is None or machine.state is not MachineState.WANTED:
        return Plan(answer=False)
    if machine.place is not None:
        return Plan(answer=True)  # it was asked for before, and is again: the time to join goes on
    return Plan((machine.asked_at(place, now.ms),), why=f"machine {name} is asked for", answer=True)


def on_created(view: View, name: str, now: Instant) -> Plan:
    """Its provider says that it has made it."""
    machine = view.machines.get(name)
    if machine is None or machine.state is not MachineState.WANTED:
        return NO_CHANGE  # it has joined meanwhile, or is no longer wanted
    return Plan((machine.turned(MachineEvent.CREATED, now.ms),), why=f"machine {name} is made")


def on_create_failed(view: View, name: str, reason: str, now: Instant) -> Plan:
    """Its provider could not make it, or it never joined: it goes, and the next one is asked for later."""
    machine, node = view.machines.get(name), node_of_machine(view, name)
    if machine is None or not machine.comes or (node is not None and is_present(node)):
        return NO_CHANGE  # something may run there: it has joined, whatever its provider says
    machine = with_node(view, machine)
    last = f"machine {name} was given up: {reason}"
    cluster = with_provider_failure(view, view.clusters[machine.cluster], last, machine.asked_ms, now)
    seconds = (cluster.paused_until_ms - now.ms) / 1000
    rests = f"; cluster {cluster.name} asks for no other for {seconds:g} s" if seconds > 0 else ""
    why = f"machine {name} is given up: {reason}{rests}"
    event = EventRecord("cluster.machine_failed", why, cluster=cluster.name)
    return Plan(
        (machine.turned(MachineEvent.NO_LONGER_DESIRED, now.ms, reason), cluster), events=(event,), why=why
    )


def with_node(view: View, machine: Machine) -> Machine:
    """Also one that was enrolled for it and is not ready yet: it must not begin when its machine goes."""
    node = node_of_machine(view, machine.name) if machine.node is None else None
    return machine if node is None else machine.known_as(node.spec.id)


def node_of_machine(view: View, name: str) -> NodeView | None:
    """The one that is there: another may have been enrolled for it, and never have heard of it."""
    return max(_nodes_of(view, name), key=is_present, default=None)


def _nodes_of(view: View, name: str) -> list[NodeView]:
    return [node for node in view.nodes.values() if node.spec.labels.get(MACHINE) == name]


def is_present(node: NodeView) -> bool:
    return node.status is not None and node.status.state in (NodeState.READY, NodeState.SUSPECT)


def abandon_machine(machine: Machine, reason: str, now: Instant) -> Plan:
    """It was a node: what runs on it may end, then it goes."""
    why = f"machine {machine.name} is given up: {reason}"
    event = EventRecord("cluster.machine_lost", why, cluster=machine.cluster)
    return Plan((machine.turned(MachineEvent.NO_LONGER_DESIRED, now.ms, reason),), events=(event,), why=why)


def on_removed(view: View, name: str) -> Plan:
    """There is no such machine, any more: its node is forgotten with it."""
    machine = view.machines.get(name)
    if machine is None:
        return NO_CHANGE
    nodes = dict.fromkeys([machine.node, *(node.spec.id for node in _nodes_of(view, name))])
    keys = (Key(f"node/{node}/{part}") for node in nodes if node in view.nodes for part in _NODE_RECORDS)
    why = f"machine {name} is gone: {machine.reason or 'its provider says so'}"
    event = EventRecord("cluster.machine_gone", why, cluster=machine.cluster)
    # Written a last time, so that whoever had a task for its node is looked at.
    return Plan((machine,), deletes=(machine.key, *keys), events=(event,), why=why)


def on_remove_failed(view: View, name: str, reason: str, now: Instant) -> Plan:
    """Its provider could not end it: it still counts, and is asked for again."""
    machine = view.machines.get(name)
    if machine is None:
        return NO_CHANGE
    why = f"machine {name} cannot be removed: {reason}"
    event = EventRecord("cluster.machine_failed", why, cluster=machine.cluster)
    cluster = view.clusters.get(machine.cluster)
    still = machine.kept(f"it cannot be removed: {reason}")
    if cluster is None or not is_stuck(view, cluster):
        return Plan((still,), events=(event,), why=why)
    return Plan((still, with_provider_failure(view, cluster, why, now.ms, now)), events=(event,), why=why)


def with_provider_failure(
    view: View, cluster: ClusterRecord, reason: str, asked_ms: int, now: Instant
) -> ClusterRecord:
    """Once more, its provider; it is left alone for as long as its wish says."""
    wish = view.cluster_intents.get(cluster.name, ClusterIntent(cluster.name))
    return cluster.failed(wish.pause_ms(cluster.failures), now.ms, reason, asked_ms)


def quoted(view: View, name: str, said: str) -> Plan:
    """Its provider's words about the last failure; they stay with the cluster's reason, if it has one."""
    cluster = view.clusters.get(name)
    if cluster is None:
        return NO_CHANGE
    why = f"the provider of cluster {name} says: {said}"
    kept = () if cluster.reason is None else (cluster.quoting(said),)
    return Plan(kept, events=(EventRecord(PROVIDER_SAID, why, cluster=name),), why=why)


def is_stuck(view: View, cluster: ClusterRecord) -> bool:
    """It needs another, and all the machines it may have are such that do not go."""
    machines = [one for one in view.machines.values() if one.cluster == cluster.name]
    wish = view.cluster_intents.get(cluster.name)
    if wish is None or not all(one.goes for one in machines):
        return False
    is_full = sum(1 + one.extra for one in machines) >= wish.max_nodes
    if cluster.is_to_come:  # who waits for it is in no line yet
        return is_full
    return is_full and view.pending_jobs_in(cluster.name) > 0


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """All of them as one; of a record that several write the last counts."""
    given = [plan for plan in plans if plan is not NO_CHANGE]
    return Plan(
        tuple({record.key: record for plan in given for record in plan.puts}.values()),
        tuple(key for plan in given for key in plan.deletes),
        tuple(event for plan in given for event in plan.events),
        "; ".join(plan.why for plan in given[:_REASONS_MAX])
        + ("" if len(given) <= _REASONS_MAX else "; and others"),
    )
