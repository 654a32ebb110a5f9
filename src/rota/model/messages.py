"""Messages between nodes and the control plane: hello and reports up, orders down, log requests.

How attempt numbers make these messages repeatable is in `rota.model.attempt`. On the wire they are
`agent.proto`, translated by `rota.wire.agent`.
"""

from enum import IntEnum
from typing import NamedTuple, Self

import msgspec

from rota.model.container import ContainerSpec, SandboxSpec
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.node import NodeLoad
from rota.model.result import ResultEndpoint
from rota.model.service import SIGTERM, HealthCheck, RestartPolicy, ServiceStatus
from rota.model.shape import RunMode
from rota.model.steps import Step, StepMark


class ReportedState(IntEnum):
    """The state that a node reports for an attempt. Numbers are part of the wire format and never change."""

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


REPORTED_FIRST_END = ReportedState.EXITED  # this and every higher number is final


class AttemptReport(msgspec.Struct, frozen=True, gc=False):
    """A node's report on one attempt: a claim, until the watcher has checked it against the assignment."""

    index: int
    attempt: int
    state: int  # a ReportedState, or one that only a newer version knows
    exit_code: int = -1
    signal: int = 0
    started_at_ms: int = 0
    ended_at_ms: int = 0
    ran_us: int = 0
    cpu_us: int = 0
    peak_kib: int = 0
    reason: str | None = None
    steps: tuple[StepMark, ...] = ()  # steps that have started
    life: ServiceStatus | None = None  # of a service
    cause: str | None = None  # an EndCause, or one that only a newer version knows
    version: int = 0  # of the job's spec with which it was started; 0: not reported, which is the first
    handle: str = ""  # the id that a dialled worker gave it
    gpus: int = 0  # its devices, one bit each; reported for attempts that were alive when the agent attached

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
    """A node announces that it will leave; until then it takes no new tasks."""

    reason: str
    within_ms: int
    moves: bool = False  # its machine is terminated then: running tasks are moved; else the node ends them
    over: bool = False  # the announcement is withdrawn


class Hello(msgspec.Struct, frozen=True):
    """The first message of a node on a connection: its identity and its whole inventory of attempts."""

    machine_id: str
    boot_id: str
    version: str
    capacity: dict[str, int]
    labels: dict[str, str]
    epoch_seen: int
    inventory: list[JobReports]
    drain: DrainRequest | None = None
    certificate_expires_at_ms: int | None = None  # wall clock; the server has it from the connection
    session: int = 0  # grows with each connection of a boot; 0: not reported, by an older version
    certificate_ca: str = ""  # fingerprint of the authority that signed its certificate

    def with_certificate(self, expires_at_ms: int, ca: str) -> Self:
        return msgspec.structs.replace(self, certificate_expires_at_ms=expires_at_ms, certificate_ca=ca)


class NodeReport(msgspec.Struct, frozen=True):
    """What changed on a node since its previous message."""

    n: int
    reports: list[JobReports]
    load: NodeLoad | None = None


class TaskTemplate(msgspec.Struct, frozen=True):
    """The part of a job's spec that nodes need to run its tasks."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: str | None
    needs: dict[str, int]
    count: int
    grace_ms: int
    timeout_ms: int | None
    run: RunMode
    log_bytes: int | None = None  # of each stream of an attempt; None: the node's default
    limits: dict[str, int] = {}
    steps: tuple[Step, ...] = ()
    files: dict[str, bytes] = {}
    container: ContainerSpec | None = None
    stop_signal: int = SIGTERM
    restart: RestartPolicy | None = None  # of a service
    check: HealthCheck | None = None
    sandbox: SandboxSpec | None = None
    lease_ms: int | None = None  # how long it may run without a renewal by the control plane
    version: int = 1
    reports: ResultEndpoint | None = None  # where its tasks report results
    record: bytes = b""  # the job's spec, sealed: a server without stored jobs gets it back at an adoption

    @property
    def needs_durable_accept(self) -> bool:
        """Whether an attempt may start only when the server has stored that this node accepted it."""
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
    firm: bool  # resources are reserved for it; else it waits on the node until some are free
    gpus: int = 0  # its devices on the node, one bit each; 0: it needs none, or the node chooses


class StopMode(IntEnum):
    """How an attempt is stopped. Numbers are part of the wire format and never change."""

    GRACEFUL = 0
    IMMEDIATE = 1
    IF_QUEUED = 2  # only if it has not started
    SUPERSEDED = 3  # a newer attempt counts: its grace period is short


class Stop(msgspec.Struct, frozen=True, gc=False):
    index: int
    attempt: int
    how: StopMode = StopMode.GRACEFUL


class Signal(msgspec.Struct, frozen=True, gc=False):
    index: int
    attempt: int
    signal: int
    n: int  # grows per job: a node that has seen this or a higher one ignores it


class JobOrders(NamedTuple):
    job: JobId
    work: TaskTemplate | None  # once per connection and version
    start: list[Start]
    stop: list[Stop]
    signals: tuple[Signal, ...] = ()


class LogWindow(NamedTuple):
    """The requested part of an attempt's output: what arrived between two times, or its last lines."""

    since_ms: int = 0  # wall clock of the node; 0: from the beginning
    until_ms: int = 0
    tail_lines: int | None = None  # None: all
    tail_of_both: bool = False  # count lines of both streams together


WHOLE_LOG = LogWindow()


class LogRequest(NamedTuple):
    """A request for one stream of one attempt, from an offset on."""

    job: JobId
    task: int
    attempt: int
    stream: str  # stdout or stderr
    offset: int
    follow: bool  # until the attempt has ended
    window: LogWindow = WHOLE_LOG


class OutputsRequest(NamedTuple):
    """A request for the output files that a task left on a node, or for their names."""

    job: JobId
    task: int
    paths: tuple[str, ...]  # empty: all
    names_only: bool


class LogPiece(NamedTuple):
    """A chunk of one stream of one attempt."""

    offset: int
    data: bytes
    missing: int = 0  # bytes before `offset` that are no longer available
    reason: str = "more was written than is kept"
    at_ms: int = 0  # wall clock by which it had arrived; 0: unknown
    marks: tuple[tuple[int, int], ...] = ()  # (bytes, wall clock by which this many had arrived)
    rest: str | None = None  # why there may be more output that is not available here


class TailPiece(NamedTuple):
    """The last bytes of one stream of an attempt, as far as they were not sent before."""

    job: JobId
    task: int
    attempt: int
    stream: str
    offset: int
    data: bytes
    is_final: bool  # the attempt has ended


class Tail(NamedTuple):
    """The last bytes of a stream, stored by the server for when the node is lost."""

    offset: int
    data: bytes
    is_final: bool = False

    @property
    def end(self) -> int:
        return self.offset + len(self.data)
