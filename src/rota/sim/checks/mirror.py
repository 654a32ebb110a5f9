"""A leader's mirror = a mirror freshly loaded from disk, its records and all that is derived from them."""

from collections.abc import Iterable, Mapping
from typing import Any

from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.job import Counters, QueueRank
from rota.model.node import ReportInterval
from rota.model.plan import Record
from rota.model.shape import QueueKey
from rota.model.task import begun
from rota.sim.cluster.engine import load_mirror
from rota.sim.cluster.server import SimServer
from rota.sim.world.invariant import InvariantBroken

_HELD = (
    *("job", "pin", "task", "attempt", "status", "node", "submit", "gone", "subscriber", "cluster"),
    *("cluster_wish", "machine"),
    *("result", "namespace", "cron", "cron_status", "meta", "pace"),
)


def within_capacity(server: SimServer, nodes: Iterable[NodeId]) -> None:
    """Where the leader has just reserved resources, it has not reserved more than the capacity.

    On other nodes it may: an attempt that was sent ahead (lookahead) starts without a reservation.
    """
    table = server.mirror.node_table
    for node in nodes:
        slot = table.slot[node]
        for resource, row in table.rows.items():
            reserved, capacity = int(table.reserved[row, slot]), int(table.capacity[row, slot])
            if reserved > capacity:
                raise InvariantBroken(
                    f"{server.name} has reserved {reserved} of {capacity} {resource} on {node}"
                )


def equal_disk(server: SimServer, known: Mapping[str, Record]) -> None:
    fresh = load_mirror(known.values(), server.mirror.now_ms)
    fresh.inherit(server.mirror)
    held = {str(record.key): record for record in _records(server.mirror)}
    disk: dict[str, Record | None] = {key: None for key in known if key.partition("/")[0] in _HELD}
    disk |= {
        str(record.key): record for record in _records(fresh)
    }  # blocks widened to the present number of tasks
    if held != disk:
        differing = [key for key in sorted(held.keys() | disk.keys()) if held.get(key) != disk.get(key)]
        raise InvariantBroken(f"{server.name} believes other than what is on disk: {differing[:5]}")
    believed, derived = _derived(server.mirror), _derived(fresh)
    for what in sorted(believed.keys() | derived.keys()):
        if believed.get(what) != derived.get(what):
            difference = f"{believed.get(what)}, and the disk says {derived.get(what)}"
            raise InvariantBroken(f"{server.name} believes of {what}: {difference}")


def _records(mirror: Mirror) -> Iterable[Record]:
    """All records of a mirror."""
    for job in mirror.jobs.values():
        of_job: tuple[Record | None, ...] = (
            *(begun(job.spec), job.intent, job.cluster, job.status, job.verdict, job.answers),
            *(job.previous_version, job.rollout, job.adoption, job.unplaceable),
        )
        yield from (record for record in of_job if record is not None)
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
    """All that a mirror derives from its records, by name."""
    affinity, accounts = mirror.affinity, mirror.usage
    found: dict[str, Any] = {
        "unfinished jobs": mirror.unfinished,
        "queues": _queues(mirror),
        "namespaces": {name: _some(held) for name, held in accounts.by_namespace.items() if _some(held)},
        "users": {owner: _some(held) for owner, held in accounts.by_owner.items() if _some(held)},
    }
    for job, entry in mirror.jobs.items():
        found[f"job {job}"] = {
            "tasks": entry.task_counts.as_dict(),
            "placed up to": entry.first_never_placed,
            "retry at": entry.retry_at_ms,
            "queued": entry.queue is not None,
            "on": entry.live_by_node,
        }
    for node in mirror.nodes:
        slot = mirror.node_table.slot[node]
        near = {term: int(column[slot]) for term, column in affinity.members.items()}
        apart = {term: int(column[slot]) for term, column in affinity.holders.items()}
        own = {job: int(column[slot]) for job, column in affinity.own.items()}
        found[f"node {node}"] = _derived_of(mirror, node) | {"affinity": (near, apart, own)}
    return found


def _queues(mirror: Mirror) -> dict[QueueKey, list[QueueRank]]:
    """Pending queues, merged over working directories: recent refusals of a directory are not stored."""
    found: dict[QueueKey, list[QueueRank]] = {}
    for key, ranks in mirror.pending_queues():
        found.setdefault(key.without_workdir, []).extend(ranks)
    return {key: sorted(ranks) for key, ranks in found.items()}


def _derived_of(mirror: Mirror, node: NodeId) -> dict[str, Any]:
    table = mirror.node_table
    slot, levels = table.slot[node], table.preemptible.by_priority.items()
    return {
        "assigned": mirror.nodes[node].assigned,
        "capacity": _some({name: int(table.capacity[row, slot]) for name, row in table.rows.items()}),
        "reserved": _some({name: int(table.reserved[row, slot]) for name, row in table.rows.items()}),
        "devices": _some(dict(enumerate(table.devices[slot].tolist()))),
        "queued": int(table.queued[slot]),
        "held": int(table.held[slot]),
        "preemptible": {level: held for level, columns in levels if (held := _at(columns, slot))},
        "leaving": _at(table.preemptible.leaving, slot),
        "noise": _some({kind: int(column[slot]) for kind, column in table.noise.items()}),
        "open": bool(table.open[slot]),
        "labels": dict(table.labels[slot]),
        "taints": table.taints[slot],
    }


def _at(columns: Mapping[str, Any], slot: int) -> dict[str, int]:
    return _some({name: int(column[slot]) for name, column in columns.items() if slot < column.size})


def _some(amounts: Mapping[Any, int]) -> dict[Any, int]:
    """Non-zero amounts: columns of removed entries may be left."""
    return {name: amount for name, amount in amounts.items() if amount}
