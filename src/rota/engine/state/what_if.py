"""A mirror -> a second one of what has not ended, on which anything may be tried without touching it."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from rota.engine.state.mirror import Mirror
from rota.engine.state.refusals import Refusals
from rota.model.ids import JobId, NodeId
from rota.model.node import Connection, NodeLoad
from rota.model.plan import Record


class MirrorCopy(NamedTuple):
    """A mirror's contents at one moment: frozen records, and copies of what is not frozen."""

    now_ms: int
    records: list[Record]
    observed: list["NodeObservation"]
    run_us: list[tuple[JobId, float]]
    refusals: Refusals
    only_granted: frozenset[str]


class NodeObservation(NamedTuple):
    """What was observed of a node, and is in no record."""

    node: NodeId
    link: Connection
    load: NodeLoad | None
    settled: Mapping[str, int]  # what was reserved there when it measured that load


class WhatIfMirror(Mirror):
    """Made from what was taken; that alone has to be done at once, the rest may be done in a thread."""

    @staticmethod
    def copy_of(mirror: Mirror) -> MirrorCopy:
        taken = MirrorCopy(
            mirror.now_ms, [mirror.counters], [], [], mirror.refusals.copy(), mirror.granted_only_labels
        )
        records = taken.records
        records.extend(mirror.clusters.values())
        records.extend(mirror.cluster_intents.values())
        records.extend(mirror.machines.values())
        records.extend(mirror.namespaces.values())
        for name, node in mirror.nodes.items():
            records.extend(node.records())
            taken.observed.append(
                NodeObservation(name, node.connection, node.load, mirror.reserved_when_measured(name))
            )
        for job in mirror.jobs.values():
            if job.status is not None and job.status.ended:
                continue
            records.extend(job.records())
            if job.run_us is not None:
                taken.run_us.append((job.spec.id, job.run_us))
        return taken

    @classmethod
    def from_copy(cls, taken: MirrorCopy) -> Self:
        shadow = cls(taken.only_granted)
        shadow.now_ms = taken.now_ms
        shadow.load(taken.records)
        for node, link, load, settled in taken.observed:
            shadow.connect(node, link)
            if load is not None:
                shadow.measure(node, load, settled)
        for job, run_us in taken.run_us:
            shadow.jobs[job].run_us = run_us
        shadow.refusals.adopt(taken.refusals)
        for errand in shadow.refusals.errands():
            shadow._queues.split_refused(errand)
        return shadow
