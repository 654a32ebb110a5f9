"""Nodes and the brake as the API shows them."""

from rota.apiserver.views.job_spec import gpu_count
from rota.apiserver.views.jobs import Json
from rota.engine.state.entries import NodeEntry
from rota.engine.state.mirror import Mirror
from rota.model.lifecycle import NodeState
from rota.model.node import Connection, Eligibility
from rota.model.shape import RunMode
from rota.rules.disruption import SilentNodes
from rota.rules.node_labels import ignored_labels, shown_labels


def node_json(mirror: Mirror, entry: NodeEntry, now_ms: int) -> Json:
    status = entry.status
    queued = int(mirror.node_table.queued[mirror.node_table.slot[entry.id]])
    return {
        "id": entry.id,
        "name": entry.spec.name,
        "state": node_state(entry).value,
        "eligibility": node_eligibility(entry).value,
        "drain": _drain_json(mirror, entry, now_ms),
        "taints": entry.intent.taints if entry.intent else (),
        "cluster": entry.spec.cluster,
        "labels": node_labels(entry, mirror.granted_only_labels),
        "granted_labels": entry.spec.labels,
        "ignored_labels": ignored_labels(_declared(entry), entry.spec.labels, mirror.granted_only_labels),
        "capacity": _amounts_json(status.capacity if status else {}),
        "reserved": _reserved_json(mirror, entry),
        "used": _used_json(entry),
        "running": len(entry.assigned) - queued,
        "queued": queued,
        "agent_version": status.version if status else None,
        "heard_ms_ago": _last_seen_ms_ago(entry, now_ms),
        "report_interval_ms": entry.report_ms or None,
        "statistics": _statistics_json(entry),
        "reason": _node_reason(entry),
        "shortage": status.shortage if status else None,
        "certificate_expires_at_ms": status.certificate_expires_at_ms if status else None,
        "revoked_until_ms": entry.intent.revoked_until_ms if entry.intent else None,
    }


def _node_reason(entry: NodeEntry) -> str | None:
    if entry.refused is not None:
        return f"refused: {entry.refused.reason}"
    return entry.status.reason if entry.status else "has not connected yet"


def brake_json(mirror: Mirror) -> Json:
    """The state of the brake: whether tasks of silent nodes are started elsewhere."""
    brake = SilentNodes(mirror).worst(mirror)
    return {"level": brake.level.value, "silent": brake.silent, "of": brake.of, "sentence": brake.sentence}


def node_state(entry: NodeEntry) -> NodeState:
    return entry.status.state if entry.status else NodeState.LEFT


def node_labels(entry: NodeEntry, only_granted: frozenset[str]) -> dict[str, str]:
    return shown_labels(_declared(entry), entry.spec.labels, only_granted)


def _declared(entry: NodeEntry) -> dict[str, str]:
    return entry.status.labels if entry.status else {}


def node_eligibility(entry: NodeEntry) -> Eligibility:
    if entry.revoked:
        return Eligibility.REVOKED
    if entry.is_draining:
        return Eligibility.DRAINING if entry.assigned else Eligibility.DRAINED
    return entry.intent.eligibility if entry.intent else Eligibility.OPEN


def _drain_json(mirror: Mirror, entry: NodeEntry, now_ms: int) -> Json | None:
    """The time left until tasks are evicted, and the number of tasks that are left to end in any case."""
    intent, status = entry.intent, entry.status
    leaves_by_ms = None if status is None else status.leaves_by_ms
    if leaves_by_ms is None and (intent is None or not intent.drains):
        return None
    never_moved = [job for job, _ in entry.assigned if mirror.jobs[job].spec.run is RunMode.AT_MOST_ONCE]
    drain_by_ms = None if intent is None else intent.drain_by_ms
    by_ms = [at_ms for at_ms in (leaves_by_ms, drain_by_ms) if at_ms is not None]
    everything = intent is not None and intent.drain_all
    return {
        "left_ms": max(0, min(by_ms) - now_ms) if by_ms else None,
        "force": everything,
        "stays": 0 if everything else len(never_moved),
    }


def _amounts_json(amounts: dict[str, int]) -> Json:
    shown: Json = {"cpu": 0.0, "memory": 0, "disk": 0, "gpu": 0, **amounts}
    shown["cpu"] /= 1000
    shown["gpu"] = gpu_count(shown["gpu"])
    return shown


def _reserved_json(mirror: Mirror, entry: NodeEntry) -> Json:
    table = mirror.node_table
    column = table.reserved[:, table.slot[entry.id]].tolist()
    capacity = entry.status.capacity if entry.status else {}
    return _amounts_json(
        {resource: column[row] for resource, row in table.rows.items() if resource in capacity}
    )


def _last_seen_ms_ago(entry: NodeEntry, now_ms: int) -> int | None:
    """Time since the last message; None: this server has received none so far."""
    if entry.status is None or entry.connection is Connection.UNKNOWN:
        return None
    return max(0, now_ms - entry.last_seen_at_ms)


def _used_json(entry: NodeEntry) -> Json | None:
    if entry.load is None or entry.status is None:
        return None
    capacity = entry.status.capacity
    used: Json = {"cpu": entry.load.cpu_milli / 1000}
    totals = {**capacity, "memory": entry.load.memory_total or capacity.get("memory", 0)}
    for resource, free in (("memory", entry.load.memory_free), ("disk", entry.load.disk_free)):
        used[resource] = None if free is None else max(0, totals.get(resource, 0) - free)
    busy = [gpu.busy for gpu in entry.load.gpus if gpu.busy is not None]
    if busy:
        used["gpu"] = round(sum(busy) / 100, 2)
    return used


def _statistics_json(entry: NodeEntry) -> Json | None:
    """The machine as its agent measured it, independent of the declared capacity."""
    load = entry.load
    if load is None:
        return None
    return {
        "cores": load.cores,
        "load": load.waiting_milli / 1000,
        "memory": {"total": load.memory_total, "free": load.memory_free},
        "swap": {"total": load.swap_total, "free": load.swap_free},
        "disks": load.disks,
        "gpus": load.gpus,
    }
