"""The state of the cluster in pages: what an outside controller reads before it watches events. [I/O]"""

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import TypeVar

from rota.apiserver.access import Caller, can_see
from rota.apiserver.admission.recovery import unresolved_losses
from rota.apiserver.api import Api
from rota.apiserver.grpc.statistics import node_statistics, queue_state, split_by_size
from rota.apiserver.views import jobs
from rota.apiserver.views.nodes import node_json
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId, NodeId
from rota.wire.controller import job_to_wire, node_to_wire
from rota.wire.generated import controller_pb2 as pb

BATCH_SIZE = 500  # nodes or jobs in one read, so that other requests are not delayed
T = TypeVar("T")


async def state_pages(api: Api, caller: Caller) -> AsyncGenerator[pb.StatePage, None]:
    """Pages of nodes and of live jobs.

    Each page is of its own revision, none older than the sequence number in the first page: a watch from that
    number on repeats some changes, and misses none.
    """
    # The cursor is taken first: what changes while pages are sent is repeated by the watch, and not lost.
    sequence, read = str(api.event_hub.latest_cursor()), api.engine.read
    yield pb.StatePage(sequence=sequence, queue=await read(partial(queue_state, caller=caller)))
    for node_ids in _batches(await read(lambda mirror: list(mirror.nodes))):
        lines = await read(partial(_node_lines, names=node_ids, now_ms=api.engine.now_ms()))
        for part in split_by_size(lines):
            yield pb.StatePage(nodes=part)
    for job_ids in _batches(await read(lambda mirror: list(mirror.jobs))):
        page = await read(partial(_job_page, caller=caller, names=job_ids))
        if page.jobs:
            yield page


def _node_lines(mirror: Mirror, names: list[NodeId], now_ms: int) -> list[pb.NodeLine]:
    found = [mirror.nodes[name] for name in names if name in mirror.nodes]
    return [
        node_to_wire(node_json(mirror, node, now_ms), node_statistics(mirror, node, now_ms)) for node in found
    ]


def _job_page(mirror: Mirror, caller: Caller, names: list[JobId]) -> pb.StatePage:
    """The jobs that have not ended, with their tasks that wait for a recovery decision."""
    found = [mirror.jobs[name] for name in names if name in mirror.jobs]
    live = [job for job in found if not jobs.has_ended(job) and can_see(caller, job.spec.namespace)]
    return pb.StatePage(
        jobs=[job_to_wire(jobs.job_line(job)) for job in live],
        unresolved=[task for job in live for task in _unresolved_tasks(job)],
    )


def _unresolved_tasks(job: JobEntry) -> Iterator[pb.UnresolvedTask]:
    for index, loss in unresolved_losses(job):
        yield pb.UnresolvedTask(
            job=job.spec.id, index=index, attempt=loss.attempt, owner=job.spec.recovery_controller or ""
        )


def _batches(names: list[T]) -> Iterator[list[T]]:
    return (names[first : first + BATCH_SIZE] for first in range(0, len(names), BATCH_SIZE))
