"""A provider's report on a machine + its record -> its next state and the event."""

from collections.abc import Iterable

from rota.model.cluster import MACHINE, ClusterIntent, ClusterRecord, Machine
from rota.model.ids import Key
from rota.model.lifecycle import MachineEvent, MachineState, NodeState
from rota.model.plan import NO_CHANGE, PROVIDER_SAID, EventRecord, Instant, Plan
from rota.model.view import NodeView, View

_NODE_RECORDS = ("spec", "wish", "status")
_REASONS_MAX = 3  # decisions named in one line of the log


def on_create_requested(view: View, name: str, place: str, now: Instant) -> Plan[bool]:
    """Record that the provider is about to be asked for the machine; answers whether it is still desired.

    Durable before the call: after a crash in between, the provider's list shows whether it was created.
    """
    machine = view.machines.get(name)
    # The call has waited for its turn: meanwhile the machine may have been given up.
    if machine is None or machine.state is not MachineState.WANTED:
        return Plan(answer=False)
    if machine.place is not None:
        return Plan(answer=True)  # a repeated request: the time to join continues
    return Plan((machine.with_provider_call(place, now.ms),), why=f"machine {name} is asked for", answer=True)


def on_created(view: View, name: str, now: Instant) -> Plan:
    """The provider reports that it has created the machine."""
    machine = view.machines.get(name)
    if machine is None or machine.state is not MachineState.WANTED:
        return NO_CHANGE  # it has joined already, or is no longer desired
    return Plan((machine.after_event(MachineEvent.CREATED, now.ms),), why=f"machine {name} is made")


def on_create_failed(view: View, name: str, reason: str, now: Instant) -> Plan:
    """The provider could not create it, or it never joined: remove it.

    The next one is requested after a backoff.
    """
    machine, node = view.machines.get(name), node_of_machine(view, name)
    # A race: the node may have joined before the failed call was reported.
    if machine is None or not machine.is_being_created or (node is not None and is_present(node)):
        return NO_CHANGE  # it has joined and may run tasks, whatever its provider reports
    machine = with_node(view, machine)
    last = f"machine {name} was given up: {reason}"
    # The time of the request groups failures: machines requested together count as one failure.
    cluster = with_provider_failure(view, view.clusters[machine.cluster], last, machine.asked_ms, now)
    seconds = (cluster.paused_until_ms - now.ms) / 1000
    backoff = f"; cluster {cluster.name} asks for no other for {seconds:g} s" if seconds > 0 else ""
    why = f"machine {name} is given up: {reason}{backoff}"
    event = EventRecord("cluster.machine_failed", why, cluster=cluster.name)
    return Plan(
        (machine.after_event(MachineEvent.NO_LONGER_DESIRED, now.ms, reason), cluster),
        events=(event,),
        why=why,
    )


def with_node(view: View, machine: Machine) -> Machine:
    """The machine with its enrolled node, ready or not: the node must not outlive its machine."""
    node = node_of_machine(view, machine.name) if machine.node is None else None
    return machine if node is None else machine.with_node(node.spec.id)


def node_of_machine(view: View, name: str) -> NodeView | None:
    """The node of a machine, preferably a present one: another may have enrolled and never connected."""
    return max(_nodes_of(view, name), key=is_present, default=None)


def _nodes_of(view: View, name: str) -> list[NodeView]:
    return [node for node in view.nodes.values() if node.spec.labels.get(MACHINE) == name]


def is_present(node: NodeView) -> bool:
    return node.status is not None and node.status.state in (NodeState.READY, NodeState.SUSPECT)


def abandon_machine(machine: Machine, reason: str, now: Instant) -> Plan:
    """Drain a joined machine: its tasks may end, then it is removed."""
    why = f"machine {machine.name} is given up: {reason}"
    event = EventRecord("cluster.machine_lost", why, cluster=machine.cluster)
    return Plan(
        (machine.after_event(MachineEvent.NO_LONGER_DESIRED, now.ms, reason),), events=(event,), why=why
    )


def on_removed(view: View, name: str) -> Plan:
    """The machine no longer exists: delete its record and its nodes."""
    machine = view.machines.get(name)
    if machine is None:
        return NO_CHANGE
    # All nodes that enrolled under this name: their certificates must not outlive the machine.
    nodes = dict.fromkeys([machine.node, *(node.spec.id for node in _nodes_of(view, name))])
    keys = (Key(f"node/{node}/{part}") for node in nodes if node in view.nodes for part in _NODE_RECORDS)
    why = f"machine {name} is gone: {machine.reason or 'its provider says so'}"
    event = EventRecord("cluster.machine_gone", why, cluster=machine.cluster)
    # The machine is written a last time: that wakes system jobs with a task pinned to its node.
    return Plan((machine,), deletes=(machine.key, *keys), events=(event,), why=why)


def on_remove_failed(view: View, name: str, reason: str, now: Instant) -> Plan:
    """The provider could not remove it: it still counts, and the call is repeated."""
    machine = view.machines.get(name)
    if machine is None:
        return NO_CHANGE
    why = f"machine {name} cannot be removed: {reason}"
    event = EventRecord("cluster.machine_failed", why, cluster=machine.cluster)
    # A failed removal counts against the provider only where it keeps jobs waiting.
    cluster = view.clusters.get(machine.cluster)
    remaining = machine.with_stuck(f"it cannot be removed: {reason}")
    if cluster is None or not is_stuck(view, cluster):
        return Plan((remaining,), events=(event,), why=why)
    return Plan((remaining, with_provider_failure(view, cluster, why, now.ms, now)), events=(event,), why=why)


def with_provider_failure(
    view: View, cluster: ClusterRecord, reason: str, asked_ms: int, now: Instant
) -> ClusterRecord:
    """The cluster with one more failure of its provider, and the backoff of its intent."""
    intent = view.cluster_intents.get(cluster.name, ClusterIntent(cluster.name))
    return cluster.after_failure(intent.backoff_ms(cluster.failures), now.ms, reason, asked_ms)


def quoted(view: View, name: str, message: str) -> Plan:
    """Publish the provider's own message on the last failure.

    Kept with the cluster's reason, if it has one.
    """
    cluster = view.clusters.get(name)
    if cluster is None:
        return NO_CHANGE
    why = f"the provider of cluster {name} says: {message}"
    kept = () if cluster.reason is None else (cluster.with_provider_message(message),)
    return Plan(kept, events=(EventRecord(PROVIDER_SAID, why, cluster=name),), why=why)


def is_stuck(view: View, cluster: ClusterRecord) -> bool:
    """Whether it needs a machine, but its limit is used up by machines that cannot be removed."""
    machines = [machine for machine in view.machines.values() if machine.cluster == cluster.name]
    intent = view.cluster_intents.get(cluster.name)
    if intent is None or not all(machine.is_being_removed for machine in machines):
        return False
    is_full = sum(1 + machine.extra for machine in machines) >= intent.max_nodes
    if cluster.may_take_jobs_later:  # jobs that wait for this cluster are in no queue yet
        return is_full
    return is_full and view.pending_jobs_in(cluster.name) > 0


def merge_plans(plans: Iterable[Plan]) -> Plan:
    """All plans as one; the last write of a record counts."""
    plans_with_changes = [plan for plan in plans if plan is not NO_CHANGE]
    return Plan(
        # All plans were decided on the same view, so failures of several machines write the cluster with the
        # same count: one step is one failure.
        tuple({record.key: record for plan in plans_with_changes for record in plan.puts}.values()),
        tuple(key for plan in plans_with_changes for key in plan.deletes),
        tuple(event for plan in plans_with_changes for event in plan.events),
        "; ".join(plan.why for plan in plans_with_changes[:_REASONS_MAX])
        + ("" if len(plans_with_changes) <= _REASONS_MAX else "; and others"),
    )
