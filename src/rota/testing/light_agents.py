"""Many nodes in one process: real agents on the real wire, whose work is only pretended. [I/O]

python -m rota.testing.light_agents DIRECTORY [NUMBER OF THE FIRST] < join lines

Each agent has an identity, a session and a desk of its own. `true` ends at once; anything else runs until
the file that is its last word exists. DIRECTORY/started-JOB gets a line for each start: task, attempt, node.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType

from rota import __version__
from rota.agent.host.load import LoadSampler, measure
from rota.agent.join import join
from rota.agent.run import Agent, AgentSettings
from rota.identity.node_identity import NodeIdentity
from rota.identity.tokens import JoinLine
from rota.model.ids import JobId
from rota.model.messages import (
    AttemptReport,
    JobReports,
    ReportedState,
    Signal,
    Start,
    StopMode,
    TaskTemplate,
)
from rota.model.result import ResultEndpoint
from rota.runtimes.protocol import AttemptName, NodeResources

LABEL = {"light": "yes"}
CPU_MILLI = 4_000
_LOOK_SECONDS = 0.5
_JOINING = 8  # at a time: each waits for an answer, not for a processor
_ENDS_AT_ONCE = "true"


class PretendRuntime:
    """A runtime that starts nothing, and says what one that does would say."""

    is_outdated = False
    shortage: str | None = None
    leases: Mapping[JobId, int] = MappingProxyType({})
    result_endpoints: Mapping[JobId, ResultEndpoint] = MappingProxyType({})
    records: Mapping[JobId, bytes] = MappingProxyType({})

    def __init__(self, node: str, directory: Path) -> None:
        self.labels: dict[str, str] = {}
        self._node = node
        self._directory = directory
        self._news: asyncio.Queue[list[JobReports]] = asyncio.Queue()
        self._works: dict[JobId, TaskTemplate] = {}
        self._claims: dict[AttemptName, AttemptReport] = {}

    async def attach(self, resources: NodeResources) -> list[JobReports]:
        del resources
        return [JobReports(name.job, [claim]) for name, claim in self._claims.items()]

    async def events(self) -> AsyncIterator[list[JobReports]]:
        while True:
            yield await self._news.get()

    async def start(self, job: JobId, work: TaskTemplate | None, tasks: list[Start]) -> None:
        if work is not None:
            self._works[job] = work
        for task in tasks:
            name = AttemptName(job, task.index, task.attempt)
            if name in self._claims:
                continue
            with (self._directory / f"started-{job}").open("a") as started:
                started.write(f"{task.index} {task.attempt} {self._node}\n")
            self._say(name, ReportedState.RUNNING)
            if self._works[job].argv[0] == _ENDS_AT_ONCE:
                self._say(name, ReportedState.EXITED)

    async def stop(self, attempts: list[AttemptName], mode: StopMode = StopMode.GRACEFUL) -> None:
        for name in attempts:
            if name in self._running() and mode is not StopMode.IF_QUEUED:
                self._say(name, ReportedState.STOPPED)

    async def signal(self, job: JobId, signals: Iterable[Signal]) -> None:
        """Nobody is there to hear it."""

    async def acknowledge(self, attempts: list[AttemptName]) -> None:
        for name in attempts:
            self._claims.pop(name, None)

    async def forget(self, jobs: list[JobId]) -> None:
        for job in jobs:
            self._works.pop(job, None)

    async def renew(self, sent_ns: int) -> None:
        """It holds no leases."""

    async def quit(self) -> None:
        await self.stop(self._running())

    def end_released(self, is_open: Callable[[str], bool]) -> None:
        for name in self._running():
            if is_open(self._works[name.job].argv[-1]):
                self._say(name, ReportedState.EXITED)

    def _running(self) -> list[AttemptName]:
        return [name for name, claim in self._claims.items() if claim.said == ReportedState.RUNNING]

    def _say(self, name: AttemptName, said: ReportedState) -> None:
        code = 0 if said is ReportedState.EXITED else -1
        claim = self._claims[name] = AttemptReport(name.task, name.attempt, said, exit_code=code)
        self._news.put_nowait([JobReports(name.job, [claim])])


class _SparseSampler(LoadSampler):
    """Looks when it is due: a thousand that look each second would be all that this machine does."""

    async def watch(self, due: Callable[[], None]) -> None:
        while True:
            self._due = measure(self._directory)
            due()
            await asyncio.sleep(max(10.0, self.report_seconds))


class _LightAgent(Agent):
    def __init__(self, settings: AgentSettings, identity: NodeIdentity, runtime: PretendRuntime) -> None:
        super().__init__(settings, identity, runtime)
        self._gauges = _SparseSampler(settings.directory)


async def run(directory: Path, lines: list[str], first: int) -> None:
    """Until it is killed."""
    numbers = range(first, first + len(lines))
    runtimes = [PretendRuntime(f"light-{number}", directory) for number in numbers]
    with ThreadPoolExecutor(_JOINING) as threads:
        agents = list(threads.map(_joined, (directory / str(n) for n in numbers), lines, runtimes))
    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(agent.run())
        tasks.create_task(_end_released(runtimes))


def _joined(directory: Path, line: str, runtime: PretendRuntime) -> _LightAgent:
    directory.mkdir(mode=0o700)
    name = f"light-{directory.name}"
    joined = join(JoinLine.parse(line), directory, name, LABEL)
    declared = {"cpu": CPU_MILLI}
    settings = AgentSettings(
        directory, tuple(joined.agent_addresses), name, __version__, LABEL, declared, {}, container="none"
    )
    return _LightAgent(settings, joined.identity, runtime)


async def _end_released(runtimes: list[PretendRuntime]) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        is_open = cache(os.path.exists)  # asked once for all of them
        for runtime in runtimes:
            runtime.end_released(is_open)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.stdin.read().split(), int((*sys.argv, "1")[2])))
