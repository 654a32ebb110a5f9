"""The machines of a cluster + the states of their nodes -> joined, abandoned, or empty machines."""

from collections.abc import Iterator
from typing import NamedTuple, Self

from rota.clusters import machine_transitions
from rota.clusters.lifecycle import minimum_nodes
from rota.model.cluster import MACHINE, ClusterIntent, ClusterRecord, Machine
from rota.model.ids import NodeId
from rota.model.lifecycle import ClusterState, MachineEvent, MachineState
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import NodeView, View
from rota.rules.node_labels import shown_labels


class MachineGroup(NamedTuple):
    """A cluster with its intent and its machines."""

    cluster: ClusterRecord
    intent: ClusterIntent
    members: list[Machine]
    leaving: frozenset[NodeId]  # nodes that reported they are leaving

    @classmethod
    def from_view(cls, view: View, cluster: ClusterRecord, intent: ClusterIntent) -> Self:
        machines = [machine for machine in view.machines.values() if machine.cluster == cluster.name]
        nodes = (machine.node for machine in machines if machine.node is not None)
        return cls(cluster, intent, machines, frozenset(node for node in nodes if _leaves(view, node)))

    @property
    def staying(self) -> list[Machine]:
        return [
            machine
            for machine in self.members
            if not machine.is_being_removed and machine.node not in self.leaving
        ]

    @property
    def size(self) -> int:
        """Number that counts towards its limit, including machines being removed and duplicates."""
        return sum(1 + machine.extra for machine in self.members)

    @property
    def coming(self) -> int:
        return sum(machine.is_being_created for machine in self.members)

    @property
    def minimum_nodes(self) -> int:
        is_over = self.intent.drain or self.cluster.state is ClusterState.FAILED
        return 0 if is_over else minimum_nodes(self.intent)


def _leaves(view: View, node: NodeId) -> bool:
    status = view.nodes[node].status if node in view.nodes else None
    return status is not None and status.leaving


def advance_machines(view: View, group: MachineGroup, now: Instant) -> Plan | None:
    """All due transitions in one plan; None: nothing is due."""
    plans = list(_due_transitions(view, group, now))
    return machine_transitions.merge_plans(plans) if plans else None


def _due_transitions(view: View, group: MachineGroup, now: Instant) -> Iterator[Plan]:
    nodes = _node_by_machine(view)
    for machine in group.members:
        node = nodes.get(machine.name) if machine.node is None else view.nodes.get(machine.node)
        match machine.state:
            case MachineState.WANTED | MachineState.CREATED:
                yield from _wait_for_join(view, group, machine, node, now)
            case MachineState.JOINED if (reason := _end_reason(node)) is not None:
                yield machine_transitions.abandon_machine(machine, reason, now)
            # Two steps: the node takes no new tasks since the commit of DRAINING, so it is empty for
            # good when it is seen empty here.
            case MachineState.DRAINING if node is None or not node.assigned:
                empty = machine.after_event(MachineEvent.EMPTY, now.ms)
                yield Plan((empty,), why=f"machine {machine.name} is empty")
            case MachineState.JOINED | MachineState.DRAINING | MachineState.LEAVING:
                pass


def _end_reason(node: NodeView | None) -> str | None:
    """Why a joined machine is of no more use; None: it stays, or tasks still run there."""
    if node is None or node.status is None:
        return "its node is deleted"
    if not machine_transitions.is_present(node):
        return f"its node is {node.status.state}"
    done = node.status.leaving and not node.assigned
    return f"its node leaves: {node.status.reason or 'it says so'}" if done else None


def _node_by_machine(view: View) -> dict[str, NodeView]:
    """The node of each machine; of several that enrolled for one, a present one."""
    nodes: dict[str, NodeView] = {}
    for node in view.nodes.values():
        name = node.spec.labels.get(MACHINE)
        # The label comes from the join token and not from the node, so no node can claim to be a machine.
        if name is not None and (name not in nodes or machine_transitions.is_present(node)):
            nodes[name] = node
    return nodes


def _wait_for_join(
    view: View, group: MachineGroup, machine: Machine, node: NodeView | None, now: Instant
) -> Iterator[Plan]:
    seconds = group.intent.join_seconds
    if node is not None and machine_transitions.is_present(node):
        yield _on_joined(view, group, machine, node, now)
    # The time to join counts from the call, not while the machine waits to be requested.
    elif machine.place is not None and now.ms - machine.since_ms > seconds * 1000:
        yield machine_transitions.on_create_failed(
            view, machine.name, f"it has not joined within {seconds:g} s", now
        )


def _on_joined(view: View, group: MachineGroup, machine: Machine, node: NodeView, now: Instant) -> Plan:
    took = (now.ms - machine.asked_ms) / 1000
    why = f"machine {machine.name} has joined as node {node.spec.name} after {took:.1f} s"
    event = EventRecord("cluster.machine_joined", why, node=node.spec.id, cluster=machine.cluster)
    assert node.status is not None, "a present node has a status"
    cluster = group.cluster.with_joined_machine(
        shown_labels(node.status.labels, {}, view.granted_only_labels)
    )
    known = (cluster,) if cluster != group.cluster else ()
    return Plan((machine.joined_as(node.spec.id, now.ms), *known), events=(event,), why=why)
