"""All that a mirror derives from its records, by name: mirrors of the same records have equal pictures."""

from collections.abc import Iterable, Mapping
from typing import Any

from rota.engine.state.mirror import Mirror
from rota.model.columns import Array
from rota.model.ids import JobId, NodeId
from rota.model.job import QueueRank
from rota.model.shape import QueueKey
from rota.rules.phases import Phase

_PENDING = bytes([Phase.PENDING])


def picture(mirror: Mirror) -> dict[str, Any]:
    """Nested tables that do not depend on the order in which nodes and jobs were added."""
    names = {mirror.node_table.slot[node]: node for node in mirror.nodes}
    return {
        "nodes": {node: _node(mirror, node) for node in mirror.nodes},
        "jobs": {job: _job(mirror, job) for job in mirror.jobs},
        "queues": _queues(mirror),
        "accounts": {
            "namespaces": _used(mirror.usage.by_namespace),
            "owners": _used(mirror.usage.by_owner),
        },
        "affinity": {
            "members": _columns(mirror.affinity.members, names),
            "holders": _columns(mirror.affinity.holders, names),
            "own": _columns(mirror.affinity.own, names),
        },
        "preemptible": {
            priority: found
            for priority, columns in mirror.node_table.preemptible.by_priority.items()
            if (found := _used(_columns(columns, names)))
        },
        "leaving": _used(_columns(mirror.node_table.preemptible.leaving, names)),
        "noise": _used(_columns(mirror.node_table.noise, names)),
        "sets": {
            "leased": sorted(mirror.leased),
            "systems": sorted(mirror.system_jobs),
            "moving": {job: mirror.jobs[job].moving for job in sorted(mirror.moving)},
            "unassigned": sorted(mirror.unassigned),
            "unfinished": mirror.unfinished,
        },
        "ended jobs": {
            "ended": mirror.ended_jobs.ended,
            "retained": mirror.ended_jobs.retained_until,
            "tombstones": mirror.ended_jobs.tombstones,
            "keys": mirror.ended_jobs.submit_keys,
            "last": mirror.ended_jobs.last_succeeded,
            "orphans": sorted(mirror.ended_jobs.orphans),
        },
        "others": {
            "counters": mirror.counters,
            "namespaces": mirror.namespaces,
            "clusters": mirror.clusters,
            "cluster intents": mirror.cluster_intents,
            "machines": mirror.machines,
            "crons": mirror.crons,
            "cron statuses": mirror.cron_statuses,
        },
    }


def differences(live: object, fresh: object, path: str = "") -> list[str]:
    """One line for each entry in which the live picture differs from the freshly loaded one."""
    if live == fresh:
        return []
    if not isinstance(live, dict) or not isinstance(fresh, dict):
        return [f"{path}: live {live!r:.300}, loaded {fresh!r:.300}"]
    found = []
    for name in [*live, *(name for name in fresh if name not in live)]:
        below = f"{path}/{name}" if path else str(name)
        if name not in live or name not in fresh:
            where = "the live one" if name in live else "the loaded one"
            found.append(f"{below}: only in {where}: {live.get(name, fresh.get(name))!r:.300}")
        else:
            found += differences(live[name], fresh[name], below)
    return found


def overcommitted(mirror: Mirror) -> Iterable[str]:
    """Nodes with more reserved than their capacity, or a negative amount."""
    table = mirror.node_table
    for node in mirror.nodes:
        slot = table.slot[node]
        for resource, row in table.rows.items():
            capacity, reserved = int(table.capacity[row, slot]), int(table.reserved[row, slot])
            if not 0 <= reserved <= max(0, capacity):
                yield f"{reserved} of {capacity} {resource} are reserved on {node}"
        if table.devices.size and not 0 <= table.devices[slot].min() <= table.devices[slot].max() <= 1000:
            yield f"devices of {node} are reserved by {table.devices[slot].tolist()} thousandths"


def _node(mirror: Mirror, node: NodeId) -> dict[str, Any]:
    table, entry = mirror.node_table, mirror.nodes[node]
    slot = table.slot[node]
    return {
        "records": (entry.spec, entry.intent, entry.status),
        "state": (
            entry.connection,
            entry.open,
            entry.is_draining,
            entry.machine_leaving,
            bool(table.open[slot]),
        ),
        "assigned": dict(entry.assigned),
        "capacity": _row(table.capacity, table.rows, slot),
        "reserved": _row(table.reserved, table.rows, slot),
        "devices": {at: amount for at, amount in enumerate(table.devices[slot].tolist()) if amount},
        "held": (int(table.held[slot]), int(table.queued[slot])),
        "labels": (dict(table.labels[slot]), table.taints[slot]),
    }


def _job(mirror: Mirror, job: JobId) -> dict[str, Any]:
    entry = mirror.jobs[job]
    blocks = range(entry.spec.blocks)
    sizes = {block: entry.spec.block_size(block) for block in blocks}
    return {
        "spec": entry.spec,
        "state": (entry.intent, entry.cluster, entry.status, entry.verdict, entry.answers),
        "rollout": (entry.previous_version, entry.rollout),
        "records": (entry.tasks, entry.attempts, entry.statuses),
        "phases": {at: entry.phases.get(at) or _PENDING * sizes[at] for at in blocks},
        "holds": {at: entry.holds.get(at) or bytes(sizes[at]) for at in blocks},
        "counts": entry.task_counts.as_dict(),
        "queued": bool(entry.queue),
        "ready": entry.ready(mirror.now_ms, entry.spec.count) if entry.queue else [],
        "retry at": {block: times for block, times in entry.retry_at_ms.items() if times},
        "nodes": dict(entry.live_by_node),
        "pinned": dict(entry.task_by_node),
        "started": entry.started_at_ms,
        "dependents": sorted(mirror.dependents(job)),
    }


def _queues(mirror: Mirror) -> dict[QueueKey, list[QueueRank]]:
    """Pending jobs by queue key of their spec; recent refusals of nodes may split a queue further."""
    found: dict[QueueKey, list[QueueRank]] = {}
    for _, ranks in mirror.pending_queues():
        for rank in ranks:
            found.setdefault(mirror.jobs[JobId(str(rank[2]))].spec.queue_key, []).append(rank)
    return {key: sorted(ranks) for key, ranks in found.items()}


def _row(table: Array, rows: Mapping[str, int], slot: int) -> dict[str, int]:
    return {name: int(table[row, slot]) for name, row in rows.items() if table[row, slot]}


def _columns(columns: Mapping[Any, Array], names: Mapping[int, NodeId]) -> dict[Any, dict[NodeId, int]]:
    """Per key, the non-zero amounts of existing nodes."""
    return {
        key: {names[slot]: int(column[slot]) for slot in column.nonzero()[0].tolist() if slot in names}
        for key, column in columns.items()
    }


def _used(sums: Mapping[Any, Mapping[Any, int]]) -> dict[Any, dict[Any, int]]:
    """Amounts without zeros and without empty rows, whose existence means nothing."""
    found = {name: {key: amount for key, amount in row.items() if amount} for name, row in sums.items()}
    return {name: row for name, row in found.items() if row}
