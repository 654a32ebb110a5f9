"""The runtime protocol: what starts and ends attempts on this machine, and outlives the agent."""

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
    """The container runtime of this machine, and what its operator allows."""

    kind: str  # podman or docker
    program: str
    mounts: tuple[str, ...] = ()  # directories that may be mounted; suffix `:ro`: read-only
    root: bool = False  # containers may run as root
    init: bool = False  # it can run an init process in containers
    old_groups: bool = False  # it manages cgroups of version 1 by itself


class NodeResources(NamedTuple):
    """What tasks may use of this machine."""

    node: str
    amounts: dict[str, int]
    gpus: tuple[str, ...]  # bit n of a GPU mask stands for the n-th
    keeping: Mapping[str, int] = MappingProxyType({})  # retention of output; missing keys: the defaults
    engine: ContainerEngine | None = None


class Runtime(Protocol):
    """Level-triggered: an agent that attaches gets the whole state, then the changes."""

    @property
    def is_outdated(self) -> bool:
        """The attached runtime is of another release: it is given nothing new, and replaced when idle."""

    @property
    def shortage(self) -> str | None:
        """Why nothing new can be started, as when the disk is full; None: it can."""

    @property
    def leases(self) -> Mapping[JobId, int]:
        """Run leases in ms, of jobs that had live attempts at the attach."""

    @property
    def result_endpoints(self) -> Mapping[JobId, ResultEndpoint]:
        """Where the agent reports results, for jobs that were known at the attach and have it do so."""

    @property
    def records(self) -> Mapping[JobId, bytes]:
        """`TaskTemplate.record` of jobs that were known at the attach, where it was not empty."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the node that say how limits, leases and isolation are enforced; known once attached."""

    async def attach(self, resources: NodeResources) -> list[JobReports]:
        """Connect; return reports of all live attempts and all unacknowledged results."""

    def events(self) -> AsyncIterator[list[JobReports]]:
        """Reports from the attach on, in batches; ends when the runtime has ended."""

    async def start(self, job: JobId, work: TaskTemplate | None, tasks: list[Start]) -> None:
        """Start attempts; idempotent by attempt number.

        `work` is sent once per job, version and attach; without tasks it updates what runs.
        """

    async def stop(self, attempts: list[AttemptName], mode: StopMode = StopMode.GRACEFUL) -> None:
        """Stop attempts, by default with a grace period before SIGKILL; queued ones are withdrawn."""

    async def signal(self, job: JobId, signals: Iterable[Signal]) -> None:
        """Send signals to running attempts, each once by its number."""

    async def acknowledge(self, attempts: list[AttemptName]) -> None:
        """Let the runtime forget results that are durable on the server."""

    async def forget(self, jobs: list[JobId]) -> None: ...

    async def renew(self, sent_ns: int) -> None:
        """Count run leases from `sent_ns` (boot-time clock): the server has received what was sent then."""

    async def quit(self) -> None:
        """Stop all attempts and end."""
