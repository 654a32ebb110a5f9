"""An agent after an upgrade attaches to a keeper of another release that still owns running work."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.model.ids import JobId
from rota.model.messages import ReportedState, Start, TaskTemplate
from rota.model.shape import RunMode
from rota.runtimes.process import ProcessRuntime
from rota.runtimes.protocol import AttemptName, NodeResources
from tests.keeper.conftest import PATIENCE_SECONDS, Keeper

JOB = JobId("7")
RESOURCES = NodeResources("n1", {"cpu": 4000, "gpu": 2000}, ("0", "1"))
OTHER_RELEASE = (
    "import sys; from rota.keeper import run; from rota.keeper.protocol import wire;"
    " wire.PROTOCOL = 0; run.run_keeper(sys.argv[1])"
)


class OutdatedKeeper(Keeper):
    """A keeper with another protocol number, until it is upgraded."""

    upgraded = False

    def command(self) -> list[str]:
        return super().command() if self.upgraded else [sys.executable, "-c", OTHER_RELEASE, str(self.root)]

    def upgrade(self) -> None:
        """Start a keeper of this release once the other one has ended."""
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


async def quit_keeper(runtime: ProcessRuntime) -> None:
    await runtime.quit()
    async for _ in runtime.events():
        pass


def template(*argv: str) -> TaskTemplate:
    return TaskTemplate("test", argv, {}, None, {"cpu": 1000}, 1, 1000, None, RunMode.AT_LEAST_ONCE)


async def until_reported(runtime: ProcessRuntime, state: ReportedState) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for batch in runtime.events():
            if any(report.state == state for job in batch for report in job.reports):
                return


def test_a_keeper_of_another_release_is_to_be_given_nothing_new(outdated: OutdatedKeeper) -> None:
    async def attach() -> tuple[bool, str | None]:
        runtime = ProcessRuntime(outdated.root)
        await runtime.attach(RESOURCES)
        await quit_keeper(runtime)
        return runtime.is_outdated, runtime.shortage

    is_outdated, shortage = asyncio.run(attach())

    assert is_outdated
    assert shortage == "its keeper is of another release of Rota, and is replaced when its work has ended"


def test_running_work_of_another_release_is_reported_and_can_be_stopped(outdated: OutdatedKeeper) -> None:
    agent = outdated.agent()
    agent.hello()
    agent.start("7", "sleep", "600")
    agent.wait_started()

    async def attach_and_stop() -> list[int]:
        runtime = ProcessRuntime(outdated.root)
        found = await runtime.attach(RESOURCES)
        await runtime.stop([AttemptName(JOB, 0, 1)])
        await until_reported(runtime, ReportedState.STOPPED)
        await quit_keeper(runtime)
        return [report.state for job in found for report in job.reports]

    assert asyncio.run(attach_and_stop()) == [ReportedState.RUNNING]


def test_the_next_keeper_reports_unacknowledged_results_of_the_previous_one(outdated: OutdatedKeeper) -> None:
    async def replace() -> tuple[bool, str | None, list[int]]:
        runtime = ProcessRuntime(outdated.root)
        await runtime.attach(RESOURCES)
        await runtime.start(JOB, template("true"), [Start(0, 1, firm=True)])
        await until_reported(runtime, ReportedState.EXITED)
        await quit_keeper(runtime)
        await asyncio.to_thread(outdated.upgrade)
        found = await runtime.attach(RESOURCES)
        state = (
            runtime.is_outdated,
            runtime.shortage,
            [report.state for job in found for report in job.reports],
        )
        await quit_keeper(runtime)
        return state

    assert asyncio.run(replace()) == (False, None, [ReportedState.EXITED])
