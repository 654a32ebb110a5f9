"""An agent after an upgrade, and the keeper that was started before it and still owns the work."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rota.model.ids import JobId
from rota.model.messages import ReportedState, Start, TaskTemplate
from rota.model.shape import RunMode
from rota.runtimes.process import ProcessRuntime
from rota.runtimes.protocol import AttemptName, NodeResources
from tests.keeper.conftest import PATIENCE_SECONDS, Keeper

JOB = JobId("7")
ROOM = NodeResources("n1", {"cpu": 4000, "gpu": 2000}, ("0", "1"))
BEFORE = (
    "import sys; from rota.keeper import run; from rota.keeper.protocol import wire;"
    " wire.PROTOCOL = 1; run.run_keeper(sys.argv[1])"
)


class OutdatedKeeper(Keeper):
    """Speaks the protocol of before."""

    upgraded = False

    def command(self) -> list[str]:
        return super().command() if self.upgraded else [sys.executable, "-c", BEFORE, str(self.root)]

    def upgrade(self) -> None:
        """Once it has gone."""
        self.process.wait(PATIENCE_SECONDS)
        self.upgraded = True
        self.start()


@pytest.fixture
def outdated(tmp_path: Path) -> Iterator[OutdatedKeeper]:
    keeper = OutdatedKeeper(tmp_path)
    try:
        yield keeper
    finally:
        keeper.close()


@contextlib.asynccontextmanager
async def attached(keeper: Keeper) -> AsyncIterator[ProcessRuntime]:
    runtime = ProcessRuntime(keeper.root)
    await runtime.attach(ROOM)
    try:
        yield runtime
    finally:
        await gone(runtime)


async def gone(runtime: ProcessRuntime) -> list[ReportedState]:
    """Tell it to go; what it says until it has gone."""
    await runtime.quit()
    return [
        ReportedState(claim.said) async for told in runtime.events() for one in told for claim in one.reports
    ]


def work(*argv: str) -> TaskTemplate:
    return TaskTemplate("test", argv, {}, None, {"cpu": 1000}, 1, 1000, None, RunMode.AT_LEAST_ONCE)


async def until_said(runtime: ProcessRuntime, wanted: ReportedState) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for told in runtime.events():
            if any(claim.said == wanted for one in told for claim in one.reports):
                return


def test_it_is_known_for_what_it_is_and_goes_on_with_other_work(outdated: OutdatedKeeper) -> None:
    async def story() -> bool:
        async with attached(outdated) as runtime:
            await runtime.start(JOB, work("true"), [Start(0, 1, firm=True)])
            await until_said(runtime, ReportedState.EXITED)
            return runtime.is_outdated

    assert asyncio.run(story())


def test_its_work_is_taken_over_and_can_be_stopped(outdated: OutdatedKeeper) -> None:
    before = outdated.agent()
    before.send(op="hello", protocol=1)
    before.receive_op("state")
    before.send(op="configure", node="n1", amounts={"cpu": 4000}, gpus=[])
    before.start("7", "sleep", "600")
    before.wait_started()

    async def story() -> list[int]:
        runtime = ProcessRuntime(outdated.root)
        found = await runtime.attach(ROOM)
        await runtime.stop([AttemptName(JOB, 0, 1)])
        await until_said(runtime, ReportedState.STOPPED)
        await gone(runtime)
        return [claim.said for one in found for claim in one.reports]

    assert asyncio.run(story()) == [ReportedState.RUNNING]


def test_when_it_has_gone_a_new_one_takes_its_place_and_remembers(outdated: OutdatedKeeper) -> None:
    async def story() -> tuple[bool, list[int]]:
        async with attached(outdated) as runtime:
            await runtime.start(JOB, work("true"), [Start(0, 1, firm=True)])
            await until_said(runtime, ReportedState.EXITED)
            await gone(runtime)
            await asyncio.to_thread(outdated.upgrade)
            found = await runtime.attach(ROOM)
            return runtime.is_outdated, [claim.said for one in found for claim in one.reports]

    assert asyncio.run(story()) == (False, [ReportedState.EXITED])
