"""The same client for asyncio: each call waits in a thread of its own, under the same names."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from rota.client.cluster import Cluster, connect
from rota.client.job import Job
from rota.client.spec_fields import SpecFields
from rota.client.streams import LogPart
from rota.client.views import (
    Brake,
    Chunk,
    DrainPlan,
    Event,
    JobStatus,
    JoinToken,
    Namespace,
    Node,
    Outlook,
    Output,
    Server,
    Task,
    Token,
    Warned,
    Why,
)

Answer = TypeVar("Answer")


def connect_async(
    addr: str | None = None, *, token: str | None = None, context: str | None = None, ca: str | None = None
) -> "AsyncCluster":
    """As `connect`, for `async with`."""
    return AsyncCluster(connect(addr, token=token, context=context, ca=ca))


class AsyncJob:
    """A handle on one job; `status` is what the server last said of it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def status(self) -> JobStatus:
        return self._job.status

    @property
    def state(self) -> str:
        return self._job.state

    @property
    def warnings(self) -> tuple[Warned, ...]:
        return self._job.warnings

    @property
    def exit_code(self) -> int | None:
        return self._job.exit_code

    async def refresh(self) -> JobStatus:
        return await _apart(self._job.refresh)

    async def wait(self, timeout_seconds: float | None = None) -> JobStatus:
        return await _apart(lambda: self._job.wait(timeout_seconds))

    async def wait_for(self, condition: str, timeout_seconds: float | None = None) -> bool:
        return await _apart(lambda: self._job.wait_for(condition, timeout_seconds))

    def follow(self, timeout_seconds: float | None = None) -> AsyncIterator[JobStatus]:
        return _each(lambda: self._job.follow(timeout_seconds))

    def tasks(self, state: str | None = None) -> AsyncIterator[Task]:
        return _each(lambda: self._job.tasks(state))

    async def task(self, index: int) -> Task:
        return await _apart(lambda: self._job.task(index))

    def as_completed(self, timeout_seconds: float | None = None) -> AsyncIterator[Task]:
        return _each(lambda: self._job.as_completed(timeout_seconds))

    async def logs(
        self,
        index: int | None = None,
        stream: str | None = None,
        attempt: int | None = None,
        step: str | None = None,
        **part: Unpack[LogPart],
    ) -> str:
        return await _apart(lambda: self._job.logs(index, stream, attempt, step, **part))

    def follow_logs(self, index: int | None = None, stream: str | None = None) -> AsyncIterator[Chunk]:
        return _each(lambda: self._job.follow_logs(index, stream))

    async def outputs(self, *paths: str, index: int = 0) -> list[Output]:
        return await _apart(lambda: self._job.outputs(*paths, index=index))

    async def get(self, *paths: str, index: int = 0, into: str | Path = ".") -> list[Path]:
        return await _apart(lambda: self._job.get(*paths, index=index, into=into))

    async def why(self) -> Why:
        return await _apart(self._job.why)

    async def cancel(self, reason: str | None = None, *, indices: Sequence[int] = ()) -> JobStatus:
        return await _apart(lambda: self._job.cancel(reason, indices=indices))

    async def kill(self, signal: str | int | None = None, *, indices: Sequence[int] = ()) -> JobStatus:
        return await _apart(lambda: self._job.kill(signal, indices=indices))

    async def pause(self, *, stop: bool = False) -> JobStatus:
        return await _apart(lambda: self._job.pause(stop=stop))

    async def resume(self) -> JobStatus:
        return await _apart(self._job.resume)

    async def update(
        self,
        changes: Mapping[str, Any],
        *,
        if_version: int | None = None,
        replace: bool = False,
        max_parallel: int | None = None,
    ) -> JobStatus:
        return await _apart(
            lambda: self._job.update(
                changes, if_version=if_version, replace=replace, max_parallel=max_parallel
            )
        )

    async def rerun(self, *, failed: bool = False, key: str | None = None) -> "AsyncJob":
        return AsyncJob(await _apart(lambda: self._job.rerun(failed=failed, key=key)))

    async def resolve(self, word: str, *indices: int) -> JobStatus:
        return await _apart(lambda: self._job.resolve(word, *indices))

    async def rollback(self) -> JobStatus:
        return await _apart(self._job.rollback)

    async def restart(self, *indices: int) -> JobStatus:
        return await _apart(lambda: self._job.restart(*indices))

    async def release(self, *indices: int) -> JobStatus:
        return await _apart(lambda: self._job.release(*indices))

    async def delete(self) -> None:
        await _apart(self._job.delete)


class AsyncCluster:
    """Talks to one server; calls are repeated while it is away."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cluster.close()

    async def submit(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> AsyncJob:
        return AsyncJob(await _apart(lambda: self._cluster.submit(*command, key=key, **spec)))

    async def run(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> AsyncJob:
        return AsyncJob(await _apart(lambda: self._cluster.run(*command, key=key, **spec)))

    async def plan(self, *command: str, **spec: Unpack[SpecFields]) -> Outlook:
        return await _apart(lambda: self._cluster.plan(*command, **spec))

    async def job(self, ref: str) -> AsyncJob:
        return AsyncJob(await _apart(lambda: self._cluster.job(ref)))

    def jobs(self, limit: int | None = None, **query: str | list[str] | None) -> AsyncIterator[JobStatus]:
        return _each(lambda: self._cluster.jobs(limit, **query))

    async def nodes(self) -> list[Node]:
        return await _apart(self._cluster.nodes)

    async def brake(self) -> Brake:
        return await _apart(self._cluster.brake)

    async def release_brake(self, *refs: str) -> Brake:
        return await _apart(lambda: self._cluster.release_brake(*refs))

    async def node(self, ref: str) -> Node:
        return await _apart(lambda: self._cluster.node(ref))

    async def drain(self, ref: str, deadline_seconds: float | None = None, *, force: bool = False) -> Node:
        return await _apart(lambda: self._cluster.drain(ref, deadline_seconds, force=force))

    async def plan_drain(self, *refs: str, force: bool = False) -> DrainPlan:
        return await _apart(lambda: self._cluster.plan_drain(*refs, force=force))

    async def cordon(self, ref: str) -> Node:
        return await _apart(lambda: self._cluster.cordon(ref))

    async def open(self, ref: str) -> Node:
        return await _apart(lambda: self._cluster.open(ref))

    async def taint(self, ref: str, *taints: str) -> Node:
        return await _apart(lambda: self._cluster.taint(ref, *taints))

    async def untaint(self, ref: str, *taints: str) -> Node:
        return await _apart(lambda: self._cluster.untaint(ref, *taints))

    async def forget_node(self, ref: str) -> None:
        await _apart(lambda: self._cluster.forget_node(ref))

    async def join_token(self, **wishes: Any) -> JoinToken:
        return await _apart(lambda: self._cluster.join_token(**wishes))

    async def tokens(self) -> list[Token]:
        return await _apart(self._cluster.tokens)

    async def make_token(
        self, name: str, role: str, *namespaces: str, valid_seconds: str | float | None = None
    ) -> Token:
        return await _apart(
            lambda: self._cluster.make_token(name, role, *namespaces, valid_seconds=valid_seconds)
        )

    async def revoke_token(self, token_id: str) -> None:
        await _apart(lambda: self._cluster.revoke_token(token_id))

    async def namespaces(self) -> list[Namespace]:
        return await _apart(self._cluster.namespaces)

    async def namespace(self, name: str) -> Namespace:
        return await _apart(lambda: self._cluster.namespace(name))

    async def set_namespace(
        self, name: str, quota: Mapping[str, Any] | None = None, weight: int = 1
    ) -> Namespace:
        return await _apart(lambda: self._cluster.set_namespace(name, quota, weight))

    async def forget_namespace(self, name: str) -> None:
        await _apart(lambda: self._cluster.forget_namespace(name))

    async def events(self, limit: int | None = None, **query: str | None) -> list[Event]:
        return await _apart(lambda: self._cluster.events(limit, **query))

    def watch(self, since: str | None = None, **query: str | None) -> AsyncIterator[Event]:
        return _each(lambda: self._cluster.watch(since, **query))

    async def server(self) -> Server:
        return await _apart(self._cluster.server)


async def _apart(function: Callable[[], Answer]) -> Answer:
    """Run in a daemon thread: unlike the loop's own pool it never keeps a cancelled program from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(value: Answer | None, error: BaseException | None) -> None:
        if answer.done():  # the caller was cancelled meanwhile
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # without an error there is a value

    def call() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:  # carried over to the caller, whatever it is
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, daemon=True, name="rota-client").start()
    return await answer


async def _each(start: Callable[[], Iterator[Answer]]) -> AsyncIterator[Answer]:
    items = start()
    while True:
        item = await _apart(lambda: next(items, _END))
        if item is _END:
            return
        yield item


_END: Any = object()
