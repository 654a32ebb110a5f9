"""Summaries for outside controllers: the queue and what nodes measured, at the interval each asks for. [I/O]

The first summary of a stream covers every node, each later one the nodes that reported since, so that its
cost follows the rate of reports, which the server limits. Many nodes are sent in several parts, and between
two parts other requests are served. A slow reader gets its next summary later; none is queued for it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from rota.apiserver.access import Caller, can_see
from rota.apiserver.api import Api, wall_ms
from rota.engine.state.entries import NodeEntry
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId, NodeId
from rota.model.limits import STATISTICS_PART_BYTES, STATISTICS_PART_NODES, STATISTICS_QUEUE_SHARE
from rota.wire.controller import statistics_to_wire
from rota.wire.generated import controller_pb2 as pb

Write = Callable[[pb.Summary], Awaitable[None]]
M = TypeVar("M", bound=Any)  # a message


class SummaryStream:
    """The summaries of one stream."""

    def __init__(self, api: Api, caller: Caller, interval_ms: int) -> None:
        self._api, self._caller = api, caller
        self._interval_seconds = interval_ms / 1000
        self._since_ms = 0  # cluster time: earlier reports have been sent
        self._queue = pb.QueueState()
        self._count_again_at = 0.0  # by the monotonic clock

    async def run(self, write: Write) -> None:
        """Write a summary immediately, then at the interval, until cancelled."""
        while True:
            started = time.monotonic()
            async with aclosing(self._parts()) as parts:
                async for part in parts:
                    await write(part)
            took = time.monotonic() - started
            # Idle for at least half of the time, however expensive a summary is.
            await asyncio.sleep(max(self._interval_seconds - took, took))

    async def _parts(self) -> AsyncGenerator[pb.Summary, None]:
        """The parts of a summary. Each is held back until the next one exists, so that the last is marked."""
        engine = self._api.engine
        await self._count_queue()
        # Taken before the nodes are read: a report that arrives meanwhile is sent twice rather than never.
        since_ms, self._since_ms = self._since_ms, engine.now_ms()
        at_ms, names = wall_ms(), await engine.read(partial(_nodes_reported_since, since_ms=since_ms))
        held = pb.Summary(at_ms=at_ms, queue=self._queue)
        for first in range(0, len(names), STATISTICS_PART_NODES):
            part = names[first : first + STATISTICS_PART_NODES]
            found = await engine.read(partial(_measured_statistics, names=part, now_ms=engine.now_ms()))
            for nodes in split_by_size(found):
                if held.nodes:
                    yield held
                    held = pb.Summary(at_ms=at_ms)
                held.nodes.extend(nodes)
        held.last = True
        yield held

    async def _count_queue(self) -> None:
        """A long queue is counted less often, so that counting takes a bounded share of the time."""
        started = time.monotonic()
        # Counting visits every waiting job, in the loop that decides.
        if started >= self._count_again_at:
            self._queue = await self._api.engine.read(partial(queue_state, caller=self._caller))
            self._count_again_at = started + STATISTICS_QUEUE_SHARE * (time.monotonic() - started)


def queue_state(mirror: Mirror, caller: Caller) -> pb.QueueState:
    """The jobs with tasks that wait for a node, as far as the caller may see them."""
    waiting = [mirror.jobs[JobId(str(rank[2]))] for _, ranks in mirror.pending_queues() for rank in ranks]
    seen = [job for job in waiting if can_see(caller, job.spec.namespace)]
    return pb.QueueState(jobs=len(seen), tasks=sum(job.task_counts.pending for job in seen))


def node_statistics(mirror: Mirror, entry: NodeEntry, now_ms: int) -> pb.NodeStatistics | None:
    """The load that a node reported last; None if it has not reported any yet."""
    if entry.load is None:
        return None
    queued = int(mirror.node_table.queued[mirror.node_table.slot[entry.id]])
    running = len(entry.assigned) - queued
    age_ms = max(0, now_ms - entry.measured_at_ms)
    return statistics_to_wire(entry.id, entry.load, age_ms=age_ms, running=running, queued=queued)


def split_by_size(messages: Iterable[M]) -> Iterator[list[M]]:
    """The same messages in lists of at most about STATISTICS_PART_BYTES."""
    part: list[M] = []
    size = 0
    for message in messages:
        if part and size + message.ByteSize() > STATISTICS_PART_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += message.ByteSize()
    if part:
        yield part


def _nodes_reported_since(mirror: Mirror, since_ms: int) -> list[NodeId]:
    """Nodes that reported at that time or later."""
    return [
        name
        for name, node in mirror.nodes.items()
        if node.load is not None and node.measured_at_ms >= since_ms
    ]


def _measured_statistics(mirror: Mirror, names: list[NodeId], now_ms: int) -> list[pb.NodeStatistics]:
    found = (node_statistics(mirror, mirror.nodes[name], now_ms) for name in names if name in mirror.nodes)
    return [statistics for statistics in found if statistics is not None]
