"""The cluster to an outside controller, in pages: what it needs to know before it watches. [I/O]"""

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import TypeVar

from rota.apiserver import show
from rota.apiserver.access import Caller, sees
from rota.apiserver.admit_loss import unresolved
from rota.apiserver.api import Api
from rota.apiserver.statistics import parted, queue, statistics_of
from rota.engine.entries import JobEntry
from rota.engine.mirror import Mirror
from rota.model.ids import JobId, NodeId
from rota.wire.controller import job_to_wire, node_to_wire
from rota.wire.generated import controller_pb2 as pb

AT_ONCE = 500  # nodes or jobs looked at before others have their turn
T = TypeVar("T")


async def pages(api: Api, caller: Caller) -> AsyncGenerator[pb.StatePage, None]:
    """Each as of its moment, none older than the sequence number that the first one tells."""
    sequence, read = str(api.changes.now()), api.engine.read
    yield pb.StatePage(sequence=sequence, queue=await read(partial(queue, caller=caller)))
    for nodes in _parts(await read(lambda mirror: list(mirror.nodes))):
        lines = await read(partial(_nodes, names=nodes, now_ms=api.engine.now_ms()))
        for part in parted(lines):
            yield pb.StatePage(nodes=part)
    for jobs in _parts(await read(lambda mirror: list(mirror.jobs))):
        page = await read(partial(_jobs, caller=caller, names=jobs))
        if page.jobs:
            yield page


def _nodes(mirror: Mirror, names: list[NodeId], now_ms: int) -> list[pb.NodeLine]:
    found = [mirror.nodes[name] for name in names if name in mirror.nodes]
    return [
        node_to_wire(show.node(mirror, node, now_ms), statistics_of(mirror, node, now_ms)) for node in found
    ]


def _jobs(mirror: Mirror, caller: Caller, names: list[JobId]) -> pb.StatePage:
    """Those that have not ended."""
    found = [mirror.jobs[name] for name in names if name in mirror.jobs]
    live = [job for job in found if not show.has_ended(job) and sees(caller, job.spec.namespace)]
    return pb.StatePage(
        jobs=[job_to_wire(show.job_line(job)) for job in live],
        unresolved=[one for job in live for one in _unresolved(job)],
    )


def _unresolved(job: JobEntry) -> Iterator[pb.UnresolvedTask]:
    for index, loss in unresolved(job):
        yield pb.UnresolvedTask(
            job=job.spec.id, index=index, attempt=loss.attempt, owner=job.spec.owner or ""
        )


def _parts(names: list[T]) -> Iterator[list[T]]:
    return (names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE))
