"""A mirror -> a copy without ended jobs, on which a plan can be tried without touching the original."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from rota.engine.state.mirror import Mirror
from rota.engine.state.refusals import Refusals
from rota.model.ids import JobId, NodeId
from rota.model.node import Connection, NodeLoad
from rota.model.plan import Record


class MirrorCopy(NamedTuple):
    """The contents of a mirror at one moment: frozen records, and copies of everything mutable."""

    now_ms: int
    records: list[Record]
    observed: list["NodeObservation"]
    run_us: list[tuple[JobId, float]]
    refusals: Refusals
    only_granted: frozenset[str]


class NodeObservation(NamedTuple):
    """Observations of a node, which are in no record."""

    node: NodeId
    link: Connection
    load: NodeLoad | None
    settled: Mapping[str, int]  # what was reserved on the node when it measured that load


class WhatIfMirror(Mirror):
    """A mirror made from a copy, as a type of its own: code that changes it cannot be given the live mirror.

    `copy_of` must run between two commits; `from_copy` shares nothing mutable and may run in a thread.
    """

    @staticmethod
    def copy_of(mirror: Mirror) -> MirrorCopy:
        copied = MirrorCopy(
            mirror.now_ms, [mirror.counters], [], [], mirror.refusals.copy(), mirror.granted_only_labels
        )
        records = copied.records
        records.extend(mirror.clusters.values())
        records.extend(mirror.cluster_intents.values())
        records.extend(mirror.machines.values())
        records.extend(mirror.namespaces.values())
        for name, node in mirror.nodes.items():
            records.extend(node.records())
            copied.observed.append(
                NodeObservation(name, node.connection, node.load, mirror.reserved_when_measured(name))
            )
        for job in mirror.jobs.values():
            # Ended jobs hold nothing on nodes, and the event loop waits for this copy.
            if job.status is not None and job.status.ended:
                continue
            records.extend(job.records())
            if job.run_us is not None:
                copied.run_us.append((job.spec.id, job.run_us))
        return copied

    @classmethod
    def from_copy(cls, copied: MirrorCopy) -> Self:
        mirror = cls(copied.only_granted)
        mirror.now_ms = copied.now_ms
        mirror.load(copied.records)
        for node, link, load, settled in copied.observed:
            mirror.connect(node, link)
            if load is not None:
                mirror.measure(node, load, settled)
        for job, run_us in copied.run_us:
            mirror.jobs[job].run_us = run_us
        mirror.refusals.adopt(copied.refusals)
        for refusal_key in mirror.refusals.refusal_keys():
            mirror._queues.split_refused(refusal_key)
        return mirror
