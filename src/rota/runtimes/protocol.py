"""Runtime: what starts and ends attempts on this machine, and outlives the agent that asks it to."""

from collections.abc import AsyncIterator, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from rota.model.ids import JobId
from rota.model.messages import JobReports, Signal, Start, StopMode, TaskTemplate
from rota.model.result import ResultEndpoint


class AttemptName(NamedTuple):
    job: JobId
    task: int
    attempt: int


class ContainerEngine(NamedTuple):
    """The container runtime of this machine, and what its owner allows."""

    kind: str  # podman or docker
    program: str
    mounts: tuple[str, ...] = ()  # what may be mounted; `:ro` behind what may only be read
    root: bool = False  # containers may run as root
    init: bool = False  # it has a first process to offer
    old_groups: bool = False  # control groups of version 1, made by itself


class NodeResources(NamedTuple):
    """What the work may use of this machine."""

    node: str
    amounts: dict[str, int]
    gpus: tuple[str, ...]  # by place: what an order names them by
    keeping: Mapping[str, int] = MappingProxyType({})  # how much output, how long; else as usual
    engine: ContainerEngine | None = None


class Runtime(Protocol):
    """Level-driven: a restarted agent attaches and is told everything."""

    @property
    def is_outdated(self) -> bool:
        """What is attached was started before an upgrade: not all can be asked of it. It goes when idle."""

    @property
    def shortage(self) -> str | None:
        """Why it can start nothing new: what it must write down has no place."""

    @property
    def leases(self) -> Mapping[JobId, int]:
        """Of jobs that ran here when it was attached: their run leases, in ms."""

    @property
    def result_endpoints(self) -> Mapping[JobId, ResultEndpoint]:
        """Of jobs that were here when it was attached, whose results the agent reports: where."""

    @property
    def records(self) -> Mapping[JobId, bytes]:
        """Of jobs that were here when it was attached: `Work.record`, where it was not empty."""

    @property
    def labels(self) -> dict[str, str]:
        """What this machine can do for the work, known once attached: how limits are kept."""

    async def attach(self, room: NodeResources) -> list[JobReports]:
        """Connect, and hear of all that is live and of every result not acknowledged."""

    def events(self) -> AsyncIterator[list[JobReports]]:
        """What happens from the attach on, in batches; ends when the runtime is gone."""

    async def start(self, job: JobId, work: TaskTemplate | None, tasks: list[Start]) -> None:
        """Idempotent by attempt number; `work` once per job, version and attach, also without tasks."""

    async def stop(self, attempts: list[AttemptName], how: StopMode = StopMode.GRACEFUL) -> None:
        """Gracefully, then by force, unless said otherwise; what waits is withdrawn."""

    async def signal(self, job: JobId, signals: Iterable[Signal]) -> None:
        """Each once, to what runs."""

    async def acknowledge(self, attempts: list[AttemptName]) -> None:
        """Their results are stored by the control plane."""

    async def forget(self, jobs: list[JobId]) -> None: ...

    async def renew(self, said_ns: int) -> None:
        """The control plane has heard what was said then, by the boot-time clock: leases count from there."""

    async def quit(self) -> None:
        """Stop all work and end."""
