"""A worker that registers or deregisters + the view -> the record of its node."""

import re

from rota.model.errors import QueueFull
from rota.model.ids import NodeId
from rota.model.job import Counters
from rota.model.limits import WORKERS_MAX
from rota.model.node import DIALLED, Dialled, NodeIntent, NodeSpec
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.view import NodeView, View, worker_node

KIND = "jobscheduler"  # value of the label DIALLED: the contract that the worker implements


def register(view: View, worker: Dialled, now: Instant) -> Plan[NodeId]:
    """Register the worker as a node. A worker at a known address replaces the previous one on its node."""
    known = {
        node.spec.dialled.address: node.spec for node in view.nodes.values() if node.spec.dialled is not None
    }
    before = known.get(worker.address)
    if before is not None:
        why = f"the worker of node {before.name} registered again"
        event = EventRecord("node.changed", why, node=before.id)
        return Plan((before.dialled_as(worker),), events=(event,), why=why, answer=before.id)
    if len(known) >= WORKERS_MAX:
        raise QueueFull(f"there are {len(known)} workers already", hint="remove some: rota node delete NAME")
    number = view.counters.nodes + 1
    node = NodeId(f"n{number}")
    spec = NodeSpec(node, _name(view, worker.address), labels={DIALLED: KIND}, joined_at_ms=now.wall_ms)
    why = f"the worker at {worker.address} is registered as node {spec.name}"
    return Plan(
        (spec.dialled_as(worker), NodeIntent(node, taints=(DIALLED,)), Counters(view.counters.jobs, number)),
        events=(EventRecord("node.joined", why, node=node),),
        why=why,
        answer=node,
    )


def deregister(view: View, worker_id: str) -> Plan[NodeId | None]:
    """Deregister a worker; the answer is its node, or None if there is no such worker."""
    node = worker_node(view, worker_id)
    if node is None or node.spec.dialled is None:
        return Plan(answer=None, fenced=True)
    # The address stays: a worker that registers there again gets the same node.
    spec = node.spec.dialled_as(Dialled(node.spec.dialled.address, ""))
    return Plan((spec,), why=f"the worker of node {spec.name} deregistered", answer=spec.id)


def registered(view: View) -> dict[NodeId, Dialled]:
    """The workers to dial, by node."""
    return {node: worker for node, entry in view.nodes.items() if (worker := _worker(entry)) is not None}


def _worker(entry: NodeView) -> Dialled | None:
    worker = entry.spec.dialled
    return worker if worker is not None and worker.worker_id else None


def _name(view: View, address: str) -> str:
    taken = {node.spec.name for node in view.nodes.values()}
    name = "worker-" + re.sub(r"[^A-Za-z0-9.]+", "-", address).strip("-")
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
