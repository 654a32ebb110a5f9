"""Lines of the agent -> orders; results and state -> lines for the agent."""

import contextlib
import json
import re
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from rota.keeper import reading
from rota.keeper.container.argv import DOCKER, PODMAN, Container, Engine, Mount
from rota.keeper.limits.words import LIMITS, NO_LIMITS, Limits, limits_of
from rota.keeper.reading import Malformed
from rota.keeper.reports import Reports, reports_of
from rota.keeper.rules import Key, Needs
from rota.keeper.sandbox import Sandbox
from rota.keeper.service.words import TERM, Check, Restart, check_of, restart_of, stop_signal_of
from rota.keeper.steps import Step
from rota.keeper.stops import How, Signal, how_of, signals_of

PROTOCOL = 4  # 1 counted whole GPUs, an order could not name them; 2 knew no containers, 3 no updates
LINE_BYTES = 64 << 20  # a start order of a million tasks takes about 15 MiB
TASKS = "a list of [index, attempt, firm] or [index, attempt, firm, gpus]"
MOUNTS = "a list of [source, target, read_only]"
USER = re.compile(r"\d{1,10}(:\d{1,10})?")
JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")  # becomes a directory's name

encode = json.JSONEncoder(separators=(",", ":")).encode


class Run(StrEnum):
    AT_LEAST_ONCE = "at_least_once"
    ONE_AT_A_TIME = "one_at_a_time"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str | None
    needs: Needs
    count: int
    grace_ms: int
    timeout_ms: int | None
    run: Run
    text: str  # as it came, for the journal
    log_bytes: int | None = None  # of each stream of an attempt; None: as the node says
    container: Container | None = None  # None: a plain process
    limits: Limits = NO_LIMITS  # of a plain process: those of a container are its runtime's to keep
    steps: tuple[Step, ...] = ()  # where there are any, they are run instead of argv
    step: int = 0  # which of them this is the spec of, from 1
    files: Mapping[str, str] = field(default_factory=dict)  # path -> base64, for the working directory
    lease_ms: int | None = None  # it may run so long after the last word the control plane has heard
    stop_signal: int = TERM  # what it is asked to end with
    restart: Restart | None = None  # of a service: its process is started again
    restarts: int = 0  # how often that was done before the start this is the spec of
    check: Check | None = None  # whether a service is well
    sandbox: Sandbox | None = None
    version: int = 1
    reports: Reports | None = None  # where its tasks say what came of them
    record: str = ""  # of the control plane, which may ask for it again; unread here

    def of_step(self, number: int) -> "Spec":
        """What to start for one of the steps."""
        step = self.steps[number - 1]
        env = {**self.env, **step.env, "ROTA_STEP": str(number), "ROTA_STEP_NAME": step.name}
        return replace(self, argv=step.argv, env=env, step=number)

    def is_newer_than(self, other: "Spec | None") -> bool:
        """Also where other servers have come to lead: its tasks are told of them from now on."""
        if other is None or self.version != other.version:
            return other is None or self.version > other.version
        return self.reports != other.reports

    def asks_for(self, name: str) -> bool:
        return any(need == name for need, _ in self.needs)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much output is kept: of one stream of a live attempt, of all ended ones, and for how long."""

    stream_bytes: int = 256 << 20
    node_bytes: int = 10 << 30
    age_ms: int = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Hello:
    pass


@dataclass(frozen=True, slots=True)
class Configure:
    node: str
    amounts: Mapping[str, int]
    gpus: tuple[str, ...]
    keeping: Keeping = Keeping()
    run_as: str = "self"  # or "own": a user for each job; or a user's name or number
    pids_max: int | None = None  # for all the work together
    no_new_privs: bool = True
    engine: Engine | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    index: int
    attempt: int
    firm: bool
    gpus: int = 0  # which, one bit each; 0: any


@dataclass(frozen=True, slots=True)
class Start:
    job: str
    spec: Spec | None
    tasks: list[Wanted]


@dataclass(frozen=True, slots=True)
class Stop:
    attempts: list[Key]
    how: How = How.GRACEFULLY


@dataclass(frozen=True, slots=True)
class Signals:
    signals: list[Signal]


@dataclass(frozen=True, slots=True)
class Ack:
    attempts: list[Key]


@dataclass(frozen=True, slots=True)
class Forget:
    jobs: list[str]


@dataclass(frozen=True, slots=True)
class Renew:
    """The control plane has heard what was said then: leases are counted from there."""

    said_ns: int  # on the boot-time clock


@dataclass(frozen=True, slots=True)
class Quit:
    pass


Order = Hello | Configure | Start | Stop | Signals | Ack | Forget | Renew | Quit


def parse(line: bytes) -> Order:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a line of JSON: {error}") from error
    if not isinstance(message, dict):
        raise Malformed('want an object such as {"op":"hello","protocol":4}')
    op = message.get("op")
    if not isinstance(op, str) or op not in READERS:
        raise Malformed(f"unknown op {op!r}: want one of {', '.join(READERS)}")
    return READERS[op](message)


def wanted(line: bytes) -> list[Key]:
    """The attempts that a line would have started, as far as it can be read at all."""
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
        message = json.loads(line)
        if message.get("op") == "start":
            job = job_id(message.get("job"))
            rows = message.get("tasks")
            return [(job, one.index, one.attempt) for one in map(_wanted, rows)]
    return []


def parse_spec(raw: object) -> Spec:
    fields = reading.is_a(raw, "spec", dict, "an object")
    needs = reading.amounts(fields.get("needs", {}), "spec.needs")
    workdir = fields.get("workdir")
    run = fields.get("run", Run.AT_LEAST_ONCE)
    if not isinstance(run, str) or run not in set(Run):
        raise Malformed(f"spec.run: want one of {', '.join(Run)}")
    said = reading.amounts(fields.get("limits", {}), "spec.limits")
    if unknown := set(said).difference(LIMITS):
        raise Malformed(f"spec.limits.{min(unknown)}: want one of {', '.join(LIMITS)}")
    pairs = tuple(sorted((name, amount) for name, amount in needs.items() if amount))
    container = _container(fields.get("container"), limits_of(said, pairs))
    return Spec(
        name=reading.text(fields.get("name", ""), "spec.name"),
        argv=reading.argv(fields, "spec"),
        env=reading.env(fields, "spec"),
        workdir=None if workdir is None else reading.text(workdir, "spec.workdir"),
        needs=pairs,
        count=reading.number(fields.get("count", 1), "spec.count"),
        grace_ms=reading.milliseconds(fields.get("grace_ms", 10_000), "spec.grace_ms"),
        timeout_ms=reading.milliseconds_or_none(fields.get("timeout_ms"), "spec.timeout_ms"),
        run=Run(run),
        text=encode(fields),
        log_bytes=reading.amount_or_none(fields.get("log_bytes"), "spec.log_bytes"),
        container=container,
        limits=NO_LIMITS if container else limits_of(said, pairs),
        steps=tuple(map(_step, reading.is_a(fields.get("steps", []), "spec.steps", list, "a list"))),
        files=_files(fields.get("files", {})),
        lease_ms=_lease(fields, run),
        stop_signal=stop_signal_of(fields.get("stop_signal", TERM)),
        restart=None if run == Run.AT_MOST_ONCE else restart_of(fields.get("restart")),
        check=check_of(fields.get("check")),
        sandbox=_sandbox(fields.get("sandbox")),
        version=reading.number(fields.get("version", 1), "spec.version"),
        reports=reports_of(fields.get("reports")),
        record=reading.text(fields.get("record", ""), "spec.record"),
    )


def _lease(fields: dict[str, Any], run: str) -> int | None:
    lease_ms = reading.milliseconds_or_none(fields.get("lease_ms"), "spec.lease_ms")
    if run == Run.ONE_AT_A_TIME and not lease_ms:
        raise Malformed("spec.lease_ms: one_at_a_time wants one, in milliseconds")
    return lease_ms


def _step(raw: object) -> Step:
    fields = reading.is_a(raw, "spec.steps", dict, "a list of objects")
    return Step(
        name=reading.text(fields.get("name", ""), "spec.steps.name"),
        argv=reading.argv(fields, "spec.steps"),
        env=reading.env(fields, "spec.steps"),
        timeout_ms=reading.milliseconds_or_none(fields.get("timeout_ms"), "spec.steps.timeout_ms"),
    )


def _files(raw: object) -> dict[str, str]:
    said = reading.is_a(raw, "spec.files", dict, "an object of base64 texts")
    for path in said:
        parts = reading.text(path, "spec.files").split("/")
        if not all(parts) or "." in parts or ".." in parts:
            raise Malformed("spec.files: want paths within the working directory")
        try:
            b64decode(reading.text(said[path], "spec.files"), validate=True)
        except ValueError:
            raise Malformed("spec.files: want contents in base64") from None
    return dict(said)


def job_id(value: object) -> str:
    if not isinstance(value, str) or not JOB.fullmatch(value):
        raise Malformed(f"job: want 1 to 128 letters, digits, '-', '_' or '.', got {str(value)[:80]!r}")
    return value


def events(
    started: Iterable[str], ended: Iterable[str], refused: Iterable[str], **more: Collection[str]
) -> bytes:
    """One line of events, each already encoded; more only of attempts that are told of beside it."""
    marks = "".join(f',"{name}":[{",".join(rows)}]' for name, rows in more.items() if rows)
    return (
        f'{{"op":"events","started":[{",".join(started)}],"ended":[{",".join(ended)}]'
        f',"refused":[{",".join(refused)}]{marks}}}\n'
    ).encode()


def space(shortage: str | None) -> bytes:
    """Why nothing new can be started here; None: it can."""
    return f"{encode({'op': 'space', 'shortage': shortage})}\n".encode()


def steps_row(key: Key, marks: Iterable[list[int | None]]) -> str:
    return encode([*key, list(marks)])


def error(reason: str) -> bytes:
    return f"{encode({'op': 'error', 'reason': reason})}\n".encode()


def _hello(message: dict[str, Any]) -> Hello:
    if message.get("protocol") != PROTOCOL:
        raise Malformed(f"protocol: this keeper speaks {PROTOCOL}")
    return Hello()


def _configure(message: dict[str, Any]) -> Configure:
    gpus = tuple(
        reading.text(gpu, "gpus")
        for gpu in reading.is_a(message.get("gpus", []), "gpus", list, "a list of ids")
    )
    if len(set(gpus)) != len(gpus):
        raise Malformed("gpus: want each id once")
    pids_max = message.get("pids_max")
    return Configure(
        node=reading.text(message.get("node"), "node"),
        amounts=reading.amounts(message.get("amounts"), "amounts"),
        gpus=gpus,
        run_as=reading.text(message.get("run_as", "self"), "run_as"),
        pids_max=None if pids_max is None else reading.number(pids_max, "pids_max"),
        no_new_privs=bool(message.get("no_new_privs", True)),
        keeping=_keeping(message),
        engine=_engine(message.get("engine")),
    )


def _keeping(message: dict[str, Any]) -> Keeping:
    said = reading.amounts(message.get("keeping", {}), "keeping")
    usual = Keeping()
    return Keeping(
        said.get("stream_bytes", usual.stream_bytes),
        said.get("node_bytes", usual.node_bytes),
        said.get("age_ms", usual.age_ms),
    )


def _start(message: dict[str, Any]) -> Start:
    job, raw = job_id(message.get("job")), message.get("spec")
    tasks = [_wanted(row) for row in reading.is_a(message.get("tasks"), "tasks", list, TASKS)]
    return Start(job, None if raw is None else parse_spec(raw), tasks)


def _wanted(row: object) -> Wanted:
    """GPUs are named only where some are given."""
    if not isinstance(row, list) or len(row) not in (3, 4):
        raise Malformed(f"tasks: want {TASKS}")
    gpus = reading.mask(row[3]) if len(row) == 4 else 0
    return Wanted(reading.number(row[0], "index"), reading.number(row[1], "attempt"), bool(row[2]), gpus)


def _attempts(message: dict[str, Any]) -> list[Key]:
    keys = []
    for row in reading.is_a(message.get("attempts"), "attempts", list, "a list of [job, index, attempt]"):
        if not isinstance(row, list) or len(row) != 3:
            raise Malformed("attempts: want a list of [job, index, attempt]")
        keys.append((job_id(row[0]), reading.number(row[1], "index"), reading.number(row[2], "attempt")))
    return keys


def _forget(message: dict[str, Any]) -> Forget:
    return Forget(
        [job_id(job) for job in reading.is_a(message.get("jobs"), "jobs", list, "a list of job ids")]
    )


READERS: dict[str, Callable[[dict[str, Any]], Order]] = {
    "hello": _hello,
    "configure": _configure,
    "start": _start,
    "stop": lambda message: Stop(_attempts(message), how_of(message)),
    "signal": lambda message: Signals(signals_of(message, job_id)),
    "ack": lambda message: Ack(_attempts(message)),
    "forget": _forget,
    "renew": lambda message: Renew(reading.number(message.get("said_ns"), "said_ns", reading.CLOCK_NS_MAX)),
    "quit": lambda _: Quit(),
}


def _container(raw: object, limits: Limits) -> Container | None:
    if raw is None:
        return None
    fields = reading.is_a(raw, "spec.container", dict, "an object")
    said = {
        name: reading.text(value, f"spec.container.{name}")
        for name, value in fields.items()
        if name != "mounts"
    }
    user = said.get("user")
    if user is not None and not USER.fullmatch(user):
        raise Malformed("spec.container.user: want numbers, as 1000 or 1000:1000")
    rows = reading.is_a(fields.get("mounts", []), "spec.container.mounts", list, MOUNTS)
    if not all(isinstance(row, list) and len(row) == 3 for row in rows):
        raise Malformed(f"spec.container.mounts: want {MOUNTS}")
    mounts = tuple(
        Mount(reading.text(source, "source"), reading.text(to, "target"), bool(ro)) for source, to, ro in rows
    )
    try:
        return Container(**said, mounts=mounts, limits=limits)
    except TypeError as error:
        raise Malformed(f"spec.container: {error}") from error


def _sandbox(raw: object) -> Sandbox | None:
    if raw is None:
        return None
    fields = reading.is_a(raw, "spec.sandbox", dict, "an object")
    paths = reading.is_a(fields.get("writable", []), "spec.sandbox.writable", list, "a list of paths")
    writable = tuple(reading.text(path, "spec.sandbox.writable") for path in paths)
    return Sandbox(bool(fields.get("network")), writable)


def _engine(raw: object) -> Engine | None:
    if raw is None:
        return None
    fields = reading.is_a(raw, "engine", dict, "an object")
    if not isinstance(fields.get("kind"), str) or fields["kind"] not in (PODMAN, DOCKER):
        raise Malformed(f"engine.kind: want {PODMAN} or {DOCKER}")
    return Engine(
        kind=fields["kind"],
        program=reading.text(fields.get("program"), "engine.program"),
        mounts=tuple(
            reading.text(path, "engine.mounts")
            for path in reading.is_a(fields.get("mounts", []), "mounts", list, "")
        ),
        root=bool(fields.get("root")),
        init=bool(fields.get("init")),
        old_groups=bool(fields.get("old_groups")),
    )
