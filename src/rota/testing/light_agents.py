"""Many nodes in one process: real agents on the real wire, whose tasks are only simulated. [I/O]

python -m rota.testing.light_agents DIRECTORY [NUMBER OF THE FIRST] < join lines

Each agent has its own identity, session and attempt tracker. `true` ends immediately; any other command runs
until the file named by its last argument exists. DIRECTORY/started-JOB gets a line for each start: task,
attempt, node.
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
_POLL_SECONDS = 0.5
_JOINING = 8  # at a time; each one waits for an answer, not for a CPU
_ENDS_IMMEDIATELY = "true"


class PretendRuntime:
    """A runtime that starts nothing and reports what a real one would."""

    is_outdated = False
    shortage: str | None = None
    leases: Mapping[JobId, int] = MappingProxyType({})
    result_endpoints: Mapping[JobId, ResultEndpoint] = MappingProxyType({})
    records: Mapping[JobId, bytes] = MappingProxyType({})

    def __init__(self, node: str, directory: Path) -> None:
        self.labels: dict[str, str] = {}
        self._node = node
        self._directory = directory
        self._events: asyncio.Queue[list[JobReports]] = asyncio.Queue()
        self._templates: dict[JobId, TaskTemplate] = {}
        self._reports: dict[AttemptName, AttemptReport] = {}

    async def attach(self, resources: NodeResources) -> list[JobReports]:
        del resources
        return [JobReports(name.job, [report]) for name, report in self._reports.items()]

    async def events(self) -> AsyncIterator[list[JobReports]]:
        while True:
            yield await self._events.get()

    async def start(self, job: JobId, work: TaskTemplate | None, tasks: list[Start]) -> None:
        if work is not None:
            self._templates[job] = work
        for task in tasks:
            name = AttemptName(job, task.index, task.attempt)
            # A start that is repeated after a reconnect starts nothing, as with a real keeper.
            if name in self._reports:
                continue
            with (self._directory / f"started-{job}").open("a") as started:
                started.write(f"{task.index} {task.attempt} {self._node}\n")
            self._report(name, ReportedState.RUNNING)
            if self._templates[job].argv[0] == _ENDS_IMMEDIATELY:
                self._report(name, ReportedState.EXITED)

    async def stop(self, attempts: list[AttemptName], mode: StopMode = StopMode.GRACEFUL) -> None:
        for name in attempts:
            if name in self._running() and mode is not StopMode.IF_QUEUED:
                self._report(name, ReportedState.STOPPED)

    async def signal(self, job: JobId, signals: Iterable[Signal]) -> None:
        """Do nothing: there is no process."""

    async def acknowledge(self, attempts: list[AttemptName]) -> None:
        for name in attempts:
            self._reports.pop(name, None)

    async def forget(self, jobs: list[JobId]) -> None:
        for job in jobs:
            self._templates.pop(job, None)

    async def renew(self, sent_ns: int) -> None:
        """Do nothing: no lease is held."""

    async def quit(self) -> None:
        await self.stop(self._running())

    def end_released(self, is_open: Callable[[str], bool]) -> None:
        for name in self._running():
            if is_open(self._templates[name.job].argv[-1]):
                self._report(name, ReportedState.EXITED)

    def _running(self) -> list[AttemptName]:
        return [name for name, report in self._reports.items() if report.state == ReportedState.RUNNING]

    def _report(self, name: AttemptName, state: ReportedState) -> None:
        code = 0 if state is ReportedState.EXITED else -1
        report = self._reports[name] = AttemptReport(name.task, name.attempt, state, exit_code=code)
        self._events.put_nowait([JobReports(name.job, [report])])


class _SparseSampler(LoadSampler):
    """Samples only when a report is due: a thousand samplers per second would use the whole machine."""

    async def watch(self, due: Callable[[], None]) -> None:
        while True:
            self._due = measure(self._directory)
            due()
            await asyncio.sleep(max(10.0, self.report_seconds))


class _LightAgent(Agent):
    """An agent with a sparse load sampler."""

    def __init__(self, settings: AgentSettings, identity: NodeIdentity, runtime: PretendRuntime) -> None:
        super().__init__(settings, identity, runtime)
        self._gauges = _SparseSampler(settings.directory)


async def run(directory: Path, lines: list[str], first: int) -> None:
    """Join and run the agents until the process is killed."""
    numbers = range(first, first + len(lines))
    runtimes = [PretendRuntime(f"light-{number}", directory) for number in numbers]
    with ThreadPoolExecutor(_JOINING) as threads:
        agents = list(threads.map(_join_agent, (directory / str(n) for n in numbers), lines, runtimes))
    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(agent.run())
        tasks.create_task(_end_released(runtimes))


def _join_agent(directory: Path, line: str, runtime: PretendRuntime) -> _LightAgent:
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
        await asyncio.sleep(_POLL_SECONDS)
        is_open = cache(os.path.exists)  # one lookup for all runtimes
        for runtime in runtimes:
            runtime.end_released(is_open)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.stdin.read().split(), int((*sys.argv, "1")[2])))
