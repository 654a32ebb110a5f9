"""What a leader believes = what a fresh read of the disk gives, and so is all that it derives from it."""

from collections.abc import Iterable, Mapping
from typing import Any

from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.job import Counters, QueueRank
from rota.model.node import ReportInterval
from rota.model.plan import Record
from rota.model.shape import QueueKey
from rota.model.task import begun
from rota.sim.broken import InvariantBroken
from rota.sim.loaded import loaded
from rota.sim.server import SimServer

_HELD = (
    *("job", "pin", "task", "attempt", "status", "node", "submit", "gone", "subscriber", "cluster"),
    *("cluster_wish", "machine"),
    *("result", "namespace", "cron", "cron_status", "meta", "pace"),
)


def within_capacity(server: SimServer, nodes: Iterable[NodeId]) -> None:
    """Where it has just placed something that must not wait, what it believes to be reserved is there.

    Elsewhere it may learn that more has begun than it knew: what was sent ahead takes room unasked.
    """
    room = server.mirror.node_table
    for node in nodes:
        slot = room.slot[node]
        for resource, row in room.rows.items():
            reserved, capacity = int(room.reserved[row, slot]), int(room.capacity[row, slot])
            if reserved > capacity:
                raise InvariantBroken(
                    f"{server.name} has reserved {reserved} of {capacity} {resource} on {node}"
                )


def equal_disk(server: SimServer, known: Mapping[str, Record]) -> None:
    fresh = loaded(known.values(), server.mirror.now_ms)
    fresh.inherit(server.mirror)
    held = {str(record.key): record for record in _records(server.mirror)}
    disk: dict[str, Record | None] = {key: None for key in known if key.partition("/")[0] in _HELD}
    disk |= {str(record.key): record for record in _records(fresh)}  # for as many tasks as there are now
    if held != disk:
        differing = [key for key in sorted(held.keys() | disk.keys()) if held.get(key) != disk.get(key)]
        raise InvariantBroken(f"{server.name} believes other than what is on disk: {differing[:5]}")
    believed, derived = _derived(server.mirror), _derived(fresh)
    for what in sorted(believed.keys() | derived.keys()):
        if believed.get(what) != derived.get(what):
            told = f"{believed.get(what)}, and the disk says {derived.get(what)}"
            raise InvariantBroken(f"{server.name} believes of {what}: {told}")


def _records(mirror: Mirror) -> Iterable[Record]:
    """Everything a mirror holds."""
    for job in mirror.jobs.values():
        one: tuple[Record | None, ...] = (
            *(begun(job.spec), job.intent, job.cluster, job.status, job.verdict, job.answers),
            *(job.previous_version, job.rollout, job.adoption, job.unplaceable),
        )
        yield from (record for record in one if record is not None)
        yield from job.pins.values()
        yield from job.tasks.values()
        yield from job.attempts.values()
        yield from job.statuses.values()
        yield from job.results.values()
    for node in mirror.nodes.values():
        yield from (record for record in (node.spec, node.intent, node.status) if record is not None)
    yield from mirror.submit_keys.values()
    yield from mirror.ended_jobs.tombstones.values()
    yield from mirror.subscribers.values()
    yield from mirror.clusters.values()
    yield from mirror.cluster_intents.values()
    yield from mirror.machines.values()
    yield from mirror.namespaces.values()
    yield from mirror.crons.values()
    yield from mirror.cron_statuses.values()
    if mirror.counters != Counters():
        yield mirror.counters
    if mirror.report_interval != ReportInterval():
        yield mirror.report_interval
    if mirror.restored is not None:
        yield mirror.restored


def _derived(mirror: Mirror) -> dict[str, Any]:
    """All it has made of its records, by a name of its own."""
    neighbours, accounts = mirror.affinity, mirror.usage
    found: dict[str, Any] = {
        "unfinished jobs": mirror.unfinished,
        "lines": _lines(mirror),
        "namespaces": {name: _some(held) for name, held in accounts.by_namespace.items() if _some(held)},
        "users": {owner: _some(held) for owner, held in accounts.by_owner.items() if _some(held)},
    }
    for job, entry in mirror.jobs.items():
        found[f"job {job}"] = {
            "tasks": entry.task_counts.as_dict(),
            "placed up to": entry.first_never_placed,
            "again": entry.retry_at_ms,
            "in line": entry.queue is not None,
            "on": entry.live_by_node,
        }
    for node in mirror.nodes:
        slot = mirror.node_table.slot[node]
        near = {term: int(column[slot]) for term, column in neighbours.members.items()}
        apart = {term: int(column[slot]) for term, column in neighbours.holders.items()}
        own = {job: int(column[slot]) for job, column in neighbours.own.items()}
        found[f"node {node}"] = _derived_of(mirror, node) | {"neighbours": (near, apart, own)}
    return found


def _lines(mirror: Mirror) -> dict[QueueKey, list[QueueRank]]:
    """With all directories together: which of them were refused lately is on no disk."""
    found: dict[QueueKey, list[QueueRank]] = {}
    for line, turns in mirror.pending_queues():
        found.setdefault(line.without_workdir, []).extend(turns)
    return {line: sorted(turns) for line, turns in found.items()}


def _derived_of(mirror: Mirror, node: NodeId) -> dict[str, Any]:
    room = mirror.node_table
    slot, levels = room.slot[node], room.preemptible.by_priority.items()
    return {
        "assigned": mirror.nodes[node].assigned,
        "capacity": _some({name: int(room.capacity[row, slot]) for name, row in room.rows.items()}),
        "reserved": _some({name: int(room.reserved[row, slot]) for name, row in room.rows.items()}),
        "devices": _some(dict(enumerate(room.devices[slot].tolist()))),
        "queued": int(room.queued[slot]),
        "held": int(room.held[slot]),
        "lent": {level: lent for level, columns in levels if (lent := _at(columns, slot))},
        "leaving": _at(room.preemptible.leaving, slot),
        "noise": _some({kind: int(column[slot]) for kind, column in room.noise.items()}),
        "open": bool(room.open[slot]),
        "labels": dict(room.labels[slot]),
        "taints": room.taints[slot],
    }


def _at(columns: Mapping[str, Any], slot: int) -> dict[str, int]:
    return _some({name: int(column[slot]) for name, column in columns.items() if slot < column.size})


def _some(amounts: Mapping[Any, int]) -> dict[Any, int]:
    """Those that there are: columns of what is gone may be left."""
    return {name: amount for name, amount in amounts.items() if amount}
