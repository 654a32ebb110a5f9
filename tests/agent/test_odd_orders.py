"""Invalid orders and messages: an agent refuses them for one job, and goes on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rota.agent.host.probe import is_missing
from rota.model.messages import ReportedState
from rota.testing.light_agents import PretendRuntime
from rota.wire import agent as wire
from rota.wire.generated import agent_pb2 as pb
from tests.agent.test_calling import WELCOME, FakeService, Noted, called

WORK = pb.Work(name="a", argv=["true"], count=1, grace_ms=1000, run="at_least_once")


def start(job: str, **work: Any) -> pb.JobOrders:
    merged = pb.Work()
    merged.CopyFrom(WORK)
    merged.MergeFrom(pb.Work(**work))
    return pb.JobOrders(job=job, work=merged, start_index=[0], start_attempt=[1], start_firm=[True])


class Ordering(FakeService):
    """A server that sends these messages to each agent, and collects its reports."""

    def __init__(self, *messages: pb.ToNode) -> None:
        super().__init__()
        self._messages = messages
        self.reports: asyncio.Queue[tuple[str, ReportedState, str | None]] = asyncio.Queue()

    async def Connect(self, messages: AsyncIterator[pb.FromNode], context: Any) -> None:  # noqa: N802 - gRPC chooses this name
        await anext(aiter(messages))
        self.hellos.put_nowait(None)
        await context.write(WELCOME)
        for message in self._messages:
            await context.write(message)
        async for received in messages:
            for job_reports in wire.reports_from_wire(list(received.report.jobs)):
                for report in job_reports.reports:
                    self.reports.put_nowait((job_reports.job, ReportedState(report.state), report.reason))

    async def report_of(self, job: str, *states: ReportedState) -> str | None:
        """The reason of the first report of a job with one of these states."""
        while True:
            name, now, reason = await self.reports.get()
            if name == job and now in states:
                return reason


class Runs(PretendRuntime):
    async def start(self, job: Any, work: Any, tasks: Any) -> None:
        if work is not None and "unspeakable" in work.env:
            raise TypeError("it cannot be said")
        await super().start(job, work, tasks)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (start("1", run="in_a_year"), ReportedState.REFUSED),
        (start("1", timeout_ms=2**64 - 1), ReportedState.EXITED),
        (start("1", env={"unspeakable": ""}), ReportedState.REFUSED),
        (
            pb.JobOrders(
                job="1", work=WORK, start_index=[0], start_attempt=[1], start_firm=[True], stop_index=[1]
            ),
            ReportedState.EXITED,
        ),
        (start("1", container=pb.Container(image="x", network="ether", pull="never")), ReportedState.REFUSED),
        (start("1", workdir="/no/such/directory"), ReportedState.REFUSED),
    ],
)
async def test_a_failed_order_is_refused_and_others_are_applied(
    tmp_path: Path, order: pb.JobOrders, said: ReportedState
) -> None:
    service = Ordering(pb.ToNode(epoch=1, orders=pb.Orders(echo=1, jobs=[order, start("2")])))
    async with called(tmp_path, service) as (agent, _):
        agent._runtime, agent._backoff = Runs("a", tmp_path), Noted()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(agent.run())

            assert await service.report_of("1", said)
            await service.report_of("2", ReportedState.EXITED)
            running.cancel()


@pytest.mark.parametrize(
    "message",
    [
        pb.ToNode(epoch=2**64 - 1),
        pb.ToNode(epoch=1, welcome=pb.Welcome(name="a")),
        pb.ToNode(epoch=1, servers=pb.Servers(addresses=["x" * 301])),
        pb.ToNode(epoch=1, open_log=pb.OpenLog(id=1, job="9" * 300, stream="stdout")),
        pb.ToNode(epoch=1, orders=pb.Orders(echo=2**64 - 1)),
    ],
)
async def test_an_agent_disconnects_on_an_invalid_message(tmp_path: Path, message: pb.ToNode) -> None:
    service = Ordering(message)
    async with called(tmp_path, service) as (agent, _):
        agent._runtime, agent._backoff = Runs("a", tmp_path), Noted()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(agent.run())
            await service.hellos.get()

            await service.hellos.get()  # it calls again
            running.cancel()


def test_an_invalid_directory_name_does_not_count_as_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert is_missing(str(tmp_path / "nothing"))
    assert is_missing(str(tmp_path / "file"))
    assert is_missing(str(tmp_path / "file" / "below"))
    assert not is_missing(str(tmp_path))
    assert not is_missing("/" + "a" * 300)
    assert not is_missing("/a\0b")
