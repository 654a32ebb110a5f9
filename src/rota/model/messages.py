"""What a node and the control plane say to each other: claims and inventory up, orders down."""

from enum import IntEnum
from typing import NamedTuple, Self

import msgspec

from rota.model.container import ContainerSpec
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.node import NodeLoad
from rota.model.result import ResultEndpoint
from rota.model.sandbox import SandboxSpec
from rota.model.service import SIGTERM, HealthCheck, RestartPolicy, ServiceStatus
from rota.model.shape import RunMode
from rota.model.steps import Step, StepMark


class ReportedState(IntEnum):
    """What a node says of an attempt. Numbers are part of the wire and never change."""

    QUEUED = 1
    ACCEPTED = 2
    RUNNING = 3
    STOPPING = 4
    EXITED = 5
    STOPPED = 6
    TIMED_OUT = 7
    LOST = 8
    REFUSED = 9
    WITHDRAWN = 10
    UNKNOWN = 11


REPORTED_FIRST_END = (
    ReportedState.EXITED
)  # this and every higher number: nothing more will come of the attempt


class AttemptReport(msgspec.Struct, frozen=True, gc=False):
    """A node's word on one attempt. It is a claim: only `watcher/node_messages` makes it a fact."""

    index: int
    attempt: int
    said: int
    exit_code: int = -1
    signal: int = 0
    started_at_ms: int = 0
    ended_at_ms: int = 0
    ran_us: int = 0
    cpu_us: int = 0
    peak_kib: int = 0
    reason: str | None = None
    steps: tuple[StepMark, ...] = ()  # that have begun
    life: ServiceStatus | None = None  # of a service
    cause: str | None = None  # a Cause, or the word of a newer version
    version: int = 0  # of the job's spec with which it was started; 0: not told, and so the first
    handle: str = ""  # what a worker that is dialled calls it itself
    gpus: int = (
        0  # devices that it holds, one bit each, where it lived when its node's keeper was attached to
    )

    def with_steps(self, steps: tuple[StepMark, ...]) -> "AttemptReport":
        return msgspec.structs.replace(self, steps=steps)

    def with_version(self, version: int) -> "AttemptReport":
        return msgspec.structs.replace(self, version=version)

    def with_reason(self, reason: str) -> "AttemptReport":
        return msgspec.structs.replace(self, reason=reason)

    def with_life(self, life: ServiceStatus) -> "AttemptReport":
        return msgspec.structs.replace(self, life=life)

    def with_gpus(self, gpus: int) -> "AttemptReport":
        return msgspec.structs.replace(self, gpus=gpus)


class JobReports(NamedTuple):
    job: JobId
    reports: list[AttemptReport]


class DrainRequest(msgspec.Struct, frozen=True):
    """A node will leave: until then it takes nothing new."""

    reason: str
    within_ms: int
    moves: bool = False  # its machine is taken away then: what still runs is moved; else the node ends it
    over: bool = False  # it does not leave after all


class Hello(msgspec.Struct, frozen=True):
    """A node's first word on a connection: who it is and everything it holds."""

    machine_id: str
    boot_id: str
    version: str
    capacity: dict[str, int]
    labels: dict[str, str]
    epoch_seen: int
    inventory: list[JobReports]
    drain: DrainRequest | None = None
    certificate_expires_at_ms: int | None = None  # wall clock; the server has it from the connection
    session: int = 0  # grows with each connection of a boot; 0: the node is older and does not tell
    certificate_ca: str = ""  # fingerprint of the authority that signed its certificate

    def with_certificate(self, expires_at_ms: int, ca: str) -> Self:
        return msgspec.structs.replace(self, certificate_expires_at_ms=expires_at_ms, certificate_ca=ca)


class NodeReport(msgspec.Struct, frozen=True):
    """What changed on a node since its last word."""

    n: int
    claims: list[JobReports]
    load: NodeLoad | None = None


class TaskTemplate(msgspec.Struct, frozen=True):
    """What a node must know of a job to run its tasks."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: str | None
    needs: dict[str, int]
    count: int
    grace_ms: int
    timeout_ms: int | None
    run: RunMode
    log_bytes: int | None = None  # of each stream of an attempt; None: as the node says
    limits: dict[str, int] = {}
    steps: tuple[Step, ...] = ()
    files: dict[str, bytes] = {}
    container: ContainerSpec | None = None
    stop_signal: int = SIGTERM
    restart: RestartPolicy | None = None  # of a service
    check: HealthCheck | None = None
    sandbox: SandboxSpec | None = None
    lease_ms: int | None = None  # how long it may run without a word of the control plane
    version: int = 1
    reports: ResultEndpoint | None = None  # where its tasks say what came of them
    record: bytes = b""  # the job's spec, sealed: what a server that keeps no jobs on disk asks for again

    @property
    def needs_durable_accept(self) -> bool:
        """It is started only when the control plane has on disk that this node took it."""
        return self.run is not RunMode.AT_LEAST_ONCE


def task_template(spec: JobSpec, reports: ResultEndpoint | None = None, record: bytes = b"") -> TaskTemplate:
    return TaskTemplate(
        name=spec.name,
        argv=spec.command,
        env=spec.env,
        workdir=spec.workdir,
        needs=spec.needs,
        count=spec.size,
        grace_ms=round(spec.grace_seconds * 1000),
        timeout_ms=None if spec.timeout_seconds is None else round(spec.timeout_seconds * 1000),
        run=spec.run,
        log_bytes=spec.log_bytes,
        limits=spec.limits,
        steps=spec.steps,
        files=spec.files,
        container=spec.container,
        stop_signal=spec.stop_signal,
        restart=spec.restart if spec.is_service else None,
        check=spec.check,
        sandbox=spec.sandbox,
        lease_ms=spec.lease_ms,
        version=spec.version,
        reports=reports,
        record=record,
    )


class Start(msgspec.Struct, frozen=True, gc=False):
    index: int
    attempt: int
    firm: bool  # room is reserved for it; else it waits on the node until there is some
    gpus: int = 0  # its devices there, one bit each; 0: it needs none, or the node chooses


class StopMode(IntEnum):
    """How an attempt is stopped. Numbers are part of the wire and never change."""

    GRACEFUL = 0
    IMMEDIATE = 1
    IF_QUEUED = 2  # what has started goes on
    SUPERSEDED = 3  # another attempt counts: it has little grace


class Stop(msgspec.Struct, frozen=True, gc=False):
    index: int
    attempt: int
    how: StopMode = StopMode.GRACEFUL


class Signal(msgspec.Struct, frozen=True, gc=False):
    index: int
    attempt: int
    signal: int
    n: int  # grows: whoever has seen it, or a higher one, passes it over


class JobOrders(NamedTuple):
    job: JobId
    work: TaskTemplate | None  # once per connection and version
    start: list[Start]
    stop: list[Stop]
    signals: tuple[Signal, ...] = ()


class LogWindow(NamedTuple):
    """Which part of an attempt's output: what arrived between two times, and of that the last lines."""

    since_ms: int = 0  # wall clock of the node; 0: at any time
    until_ms: int = 0
    tail_lines: int | None = None  # None: all
    tail_of_both: bool = False  # lines of both streams count


WHOLE_LOG = LogWindow()


class LogRequest(NamedTuple):
    """One stream of one attempt, from an offset on."""

    job: JobId
    task: int
    attempt: int
    stream: str  # stdout or stderr
    offset: int
    follow: bool  # until the attempt has ended
    window: LogWindow = WHOLE_LOG


class OutputsRequest(NamedTuple):
    """What a task left on a node: which files, or what is in them."""

    job: JobId
    task: int
    paths: tuple[str, ...]  # none: all
    names_only: bool


class LogPiece(NamedTuple):
    """Some bytes of one stream of one attempt."""

    offset: int
    data: bytes
    missing: int = 0  # bytes before `offset` that are gone
    reason: str = "more was written than is kept"
    at_ms: int = 0  # wall clock: by when they had arrived; 0: nobody knows
    marks: tuple[tuple[int, int], ...] = ()  # by when so many of them already had
    rest: str | None = None  # why there may be more, of which nobody here knows


class TailPiece(NamedTuple):
    """Of what one attempt wrote to one stream the last bytes, as far as they were not told before."""

    job: JobId
    task: int
    attempt: int
    stream: str
    offset: int
    data: bytes
    is_final: bool  # the attempt has ended


class Tail(NamedTuple):
    """The last bytes of a stream, kept for when the node that has them all is gone."""

    offset: int
    data: bytes
    is_final: bool = False

    @property
    def end(self) -> int:
        return self.offset + len(self.data)
