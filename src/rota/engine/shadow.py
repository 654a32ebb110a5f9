"""A mirror -> a second one of what has not ended, on which anything may be tried without touching it."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from rota.engine.mirror import Mirror
from rota.engine.refusals import Refusals
from rota.model.ids import JobId, NodeId
from rota.model.node import Link, Load
from rota.model.plan import Record


class Taken(NamedTuple):
    """A mirror's contents at one moment: frozen records, and copies of what is not frozen."""

    now_ms: int
    records: list[Record]
    seen: list["Seen"]
    run_us: list[tuple[JobId, float]]
    refusals: Refusals
    only_granted: frozenset[str]


class Seen(NamedTuple):
    """What was observed of a node, and is in no record."""

    node: NodeId
    link: Link
    load: Load | None
    settled: Mapping[str, int]  # what was reserved there when it measured that load


class Shadow(Mirror):
    """Made from what was taken; that alone has to be done at once, the rest may be done in a thread."""

    @staticmethod
    def take(mirror: Mirror) -> Taken:
        taken = Taken(mirror.now_ms, [mirror.counters], [], [], mirror.refusals.copy(), mirror.only_granted)
        records = taken.records
        records.extend(mirror.clusters.values())
        records.extend(mirror.cluster_wishes.values())
        records.extend(mirror.machines.values())
        records.extend(mirror.namespaces.values())
        for name, node in mirror.nodes.items():
            records.extend(node.records())
            taken.seen.append(Seen(name, node.link, node.load, mirror.settled_on(name)))
        for job in mirror.jobs.values():
            if job.status is not None and job.status.ended:
                continue
            records.extend(job.records())
            if job.run_us is not None:
                taken.run_us.append((job.spec.id, job.run_us))
        return taken

    @classmethod
    def of(cls, taken: Taken) -> Self:
        shadow = cls(taken.only_granted)
        shadow.now_ms = taken.now_ms
        shadow.load(taken.records)
        for node, link, load, settled in taken.seen:
            shadow.connect(node, link)
            if load is not None:
                shadow.measure(node, load, settled)
        for job, run_us in taken.run_us:
            shadow.jobs[job].run_us = run_us
        shadow.refusals.adopt(taken.refusals)
        for errand in shadow.refusals.errands():
            shadow._lines.refuse(errand)
        return shadow
