"""The keeper's protocol: lines of the agent -> orders; events and state -> lines for the agent.

`hello`, `state`, `events`, `stop`, `ack` and `quit` keep their meaning from release to release, so that an
agent can always end a keeper of another release in good order. All else may change together with PROTOCOL.
"""

import contextlib
import json
import re
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from rota.keeper import parsing
from rota.keeper.container.argv import DOCKER, PODMAN, KeeperContainer, KeeperContainerEngine, KeeperMount
from rota.keeper.limits.limits import LIMITS, NO_LIMITS, AttemptLimits, effective_limits
from rota.keeper.parsing import Malformed
from rota.keeper.process.sandbox import KeeperSandbox
from rota.keeper.protocol.result_endpoint import KeeperResultEndpoint, parse_result_endpoint
from rota.keeper.protocol.steps import StepCommand
from rota.keeper.protocol.stop_modes import AttemptSignal, KeeperStopMode, parse_signals, parse_stop_mode
from rota.keeper.resources.reservations import AttemptKey, Needs
from rota.keeper.service.spec import (
    TERM,
    KeeperCheck,
    KeeperRestart,
    parse_check,
    parse_restart,
    parse_stop_signal,
)

PROTOCOL = 1  # an agent with another number lets this keeper finish its work, then replaces it
LINE_BYTES_MAX = 64 << 20  # an order to start a million tasks has about 15 MiB
TASKS = "a list of [index, attempt, firm] or [index, attempt, firm, gpus]"
MOUNTS = "a list of [source, target, read_only]"
USER = re.compile(r"\d{1,10}(:\d{1,10})?")
JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")  # it becomes the name of a directory

encode = json.JSONEncoder(separators=(",", ":")).encode


class RunModeName(StrEnum):
    AT_LEAST_ONCE = "at_least_once"
    ONE_AT_A_TIME = "one_at_a_time"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True)
class KeeperJobSpec:
    name: str
    argv: tuple[str, ...]  # empty where there are steps
    env: Mapping[str, str]
    workdir: str | None
    needs: Needs
    count: int
    grace_ms: int
    timeout_ms: int | None
    run: RunModeName
    text: str  # as received, for the journal
    log_bytes: int | None = None  # cap per stream of an attempt; None: the node's
    container: KeeperContainer | None = None  # None: a plain process
    limits: AttemptLimits = NO_LIMITS  # of a plain process: those of a container are its runtime's to keep
    steps: tuple[StepCommand, ...] = ()  # if there are any, they are run instead of argv
    step: int = 0  # number of the step that this is the spec of, from 1
    files: Mapping[str, str] = field(default_factory=dict)  # path -> base64, for the working directory
    lease_ms: int | None = None  # how long it may run after the last message that the server has received
    stop_signal: int = TERM
    restart: KeeperRestart | None = None  # restart policy of a service
    restarts: int = 0  # restarts before the process that this is the spec of
    check: KeeperCheck | None = None  # health check of a service
    sandbox: KeeperSandbox | None = None
    version: int = 1
    reports: KeeperResultEndpoint | None = None  # where its tasks report their results
    record: str = ""  # sealed spec of the server, which may ask for it again; opaque here

    def for_step(self, number: int) -> "KeeperJobSpec":
        """The spec of the process of one step."""
        step = self.steps[number - 1]
        env = {**self.env, **step.env, "ROTA_STEP": str(number), "ROTA_STEP_NAME": step.name}
        return replace(self, argv=step.argv, env=env, step=number)

    def is_newer_than(self, other: "KeeperJobSpec | None") -> bool:
        """Whether this spec replaces the other: a higher version, or a changed result endpoint."""
        if other is None or self.version != other.version:
            return other is None or self.version > other.version
        return self.reports != other.reports

    def needs_resource(self, name: str) -> bool:
        return any(need == name for need, _ in self.needs)


@dataclass(frozen=True, slots=True)
class OutputRetention:
    """How much output is kept: per stream of a live attempt, of all ended ones together, and how long."""

    stream_bytes: int = 256 << 20
    node_bytes: int = 10 << 30
    age_ms: int = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class KeeperHello:
    pass


@dataclass(frozen=True, slots=True)
class ConfigureOrder:
    node: str
    amounts: Mapping[str, int]
    gpus: tuple[str, ...]
    retention: OutputRetention = OutputRetention()
    run_as: str = "self"  # or "own": a user for each job; or the name or number of a user
    pids_max: int | None = None  # of all attempts together
    no_new_privs: bool = True
    engine: KeeperContainerEngine | None = None


@dataclass(frozen=True, slots=True)
class TaskStart:
    index: int
    attempt: int
    firm: bool
    gpus: int = 0  # mask of GPUs; 0: any


@dataclass(frozen=True, slots=True)
class StartOrder:
    job: str
    spec: KeeperJobSpec | None
    tasks: list[TaskStart]


@dataclass(frozen=True, slots=True)
class StopOrder:
    attempts: list[AttemptKey]
    mode: KeeperStopMode = KeeperStopMode.GRACEFUL


@dataclass(frozen=True, slots=True)
class SignalOrder:
    signals: list[AttemptSignal]


@dataclass(frozen=True, slots=True)
class AckOrder:
    attempts: list[AttemptKey]


@dataclass(frozen=True, slots=True)
class ForgetOrder:
    jobs: list[str]


@dataclass(frozen=True, slots=True)
class RenewOrder:
    """The server has received what was sent at that time: run leases count from there."""

    sent_ns: int  # on the boot-time clock


@dataclass(frozen=True, slots=True)
class QuitOrder:
    pass


Order = (
    KeeperHello
    | ConfigureOrder
    | StartOrder
    | StopOrder
    | SignalOrder
    | AckOrder
    | ForgetOrder
    | RenewOrder
    | QuitOrder
)


def parse(line: bytes) -> Order:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a line of JSON: {error}") from error
    if not isinstance(message, dict):
        raise Malformed('want an object such as {"op":"hello","protocol":1}')
    op = message.get("op")
    if not isinstance(op, str) or op not in ORDER_PARSERS:
        raise Malformed(f"unknown op {op!r}: want one of {', '.join(ORDER_PARSERS)}")
    return ORDER_PARSERS[op](message)


def keys_to_start(line: bytes) -> list[AttemptKey]:
    """The attempts that a line would have started, as far as it can be parsed."""
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
        message = json.loads(line)
        if message.get("op") == "start":
            job = parse_job_id(message.get("job"))
            rows = message.get("tasks")
            return [(job, task.index, task.attempt) for task in map(_parse_task_start, rows)]
    return []


def parse_spec(raw: object) -> KeeperJobSpec:
    """Parse a spec. Fields that every job has are required; those of some jobs may be left out."""
    fields = parsing.expect(raw, "spec", dict, "an object")
    needs = parsing.amounts(fields.get("needs"), "spec.needs")
    workdir = fields.get("workdir")
    run = fields.get("run")
    if not isinstance(run, str) or run not in set(RunModeName):
        raise Malformed(f"spec.run: want one of {', '.join(RunModeName)}")
    limits = parsing.amounts(fields.get("limits"), "spec.limits")
    if unknown := set(limits).difference(LIMITS):
        raise Malformed(f"spec.limits.{min(unknown)}: want one of {', '.join(LIMITS)}")
    pairs = tuple(sorted((name, amount) for name, amount in needs.items() if amount))
    container = _parse_container(fields.get("container"), effective_limits(limits, pairs))
    return KeeperJobSpec(
        name=parsing.text(fields.get("name"), "spec.name"),
        argv=() if fields.get("steps") else parsing.argv(fields, "spec"),
        env=parsing.env(fields, "spec"),
        workdir=None if workdir is None else parsing.text(workdir, "spec.workdir"),
        needs=pairs,
        count=parsing.number(fields.get("count"), "spec.count"),
        grace_ms=parsing.milliseconds(fields.get("grace_ms"), "spec.grace_ms"),
        timeout_ms=parsing.milliseconds_or_none(fields.get("timeout_ms"), "spec.timeout_ms"),
        run=RunModeName(run),
        text=encode(fields),
        log_bytes=parsing.amount_or_none(fields.get("log_bytes"), "spec.log_bytes"),
        container=container,
        limits=NO_LIMITS if container else effective_limits(limits, pairs),
        steps=tuple(map(_parse_step, parsing.expect(fields.get("steps", []), "spec.steps", list, "a list"))),
        files=_parse_files(fields.get("files", {})),
        lease_ms=_parse_lease(fields, run),
        stop_signal=parse_stop_signal(fields.get("stop_signal")),
        restart=None if run == RunModeName.AT_MOST_ONCE else parse_restart(fields.get("restart")),
        check=parse_check(fields.get("check")),
        sandbox=_parse_sandbox(fields.get("sandbox")),
        version=parsing.number(fields.get("version"), "spec.version"),
        reports=parse_result_endpoint(fields.get("reports")),
        record=parsing.text(fields.get("record", ""), "spec.record"),
    )


def _parse_lease(fields: dict[str, Any], run: str) -> int | None:
    lease_ms = parsing.milliseconds_or_none(fields.get("lease_ms"), "spec.lease_ms")
    if run == RunModeName.ONE_AT_A_TIME and not lease_ms:
        raise Malformed("spec.lease_ms: one_at_a_time wants one, in milliseconds")
    return lease_ms


def _parse_step(raw: object) -> StepCommand:
    fields = parsing.expect(raw, "spec.steps", dict, "a list of objects")
    return StepCommand(
        name=parsing.text(fields.get("name", ""), "spec.steps.name"),
        argv=parsing.argv(fields, "spec.steps"),
        env=parsing.env(fields, "spec.steps"),
        timeout_ms=parsing.milliseconds_or_none(fields.get("timeout_ms"), "spec.steps.timeout_ms"),
    )


def _parse_files(raw: object) -> dict[str, str]:
    files = parsing.expect(raw, "spec.files", dict, "an object of base64 texts")
    for path in files:
        parts = parsing.text(path, "spec.files").split("/")
        if not all(parts) or "." in parts or ".." in parts:
            raise Malformed("spec.files: want paths within the working directory")
        try:
            b64decode(parsing.text(files[path], "spec.files"), validate=True)
        except ValueError:
            raise Malformed("spec.files: want contents in base64") from None
    return dict(files)


def parse_job_id(value: object) -> str:
    if not isinstance(value, str) or not JOB.fullmatch(value):
        raise Malformed(f"job: want 1 to 128 letters, digits, '-', '_' or '.', got {str(value)[:80]!r}")
    return value


def events_line(
    started: Iterable[str], ended: Iterable[str], refused: Iterable[str], **more: Collection[str]
) -> bytes:
    """An `events` line of encoded rows; `more` has details of attempts that have a row in it."""
    details = "".join(f',"{name}":[{",".join(rows)}]' for name, rows in more.items() if rows)
    return (
        f'{{"op":"events","started":[{",".join(started)}],"ended":[{",".join(ended)}]'
        f',"refused":[{",".join(refused)}]{details}}}\n'
    ).encode()


def shortage_line(shortage: str | None) -> bytes:
    """A `space` line: why nothing new can be started here; None: it can."""
    return f"{encode({'op': 'space', 'shortage': shortage})}\n".encode()


def steps_row(key: AttemptKey, marks: Iterable[list[int | None]]) -> str:
    return encode([*key, list(marks)])


def error_line(reason: str) -> bytes:
    return f"{encode({'op': 'error', 'reason': reason})}\n".encode()


def _parse_hello(message: dict[str, Any]) -> KeeperHello:
    """Any number is accepted: an agent of another release has to be told what runs here, and our number."""
    parsing.number(message.get("protocol"), "protocol")
    return KeeperHello()


def _parse_configure(message: dict[str, Any]) -> ConfigureOrder:
    gpus = tuple(
        parsing.text(gpu, "gpus")
        for gpu in parsing.expect(message.get("gpus", []), "gpus", list, "a list of ids")
    )
    if len(set(gpus)) != len(gpus):
        raise Malformed("gpus: want each id once")
    pids_max = message.get("pids_max")
    return ConfigureOrder(
        node=parsing.text(message.get("node"), "node"),
        amounts=parsing.amounts(message.get("amounts"), "amounts"),
        gpus=gpus,
        run_as=parsing.text(message.get("run_as", "self"), "run_as"),
        pids_max=None if pids_max is None else parsing.number(pids_max, "pids_max"),
        no_new_privs=bool(message.get("no_new_privs", True)),
        retention=_parse_retention(message),
        engine=_parse_engine(message.get("engine")),
    )


def _parse_retention(message: dict[str, Any]) -> OutputRetention:
    amounts = parsing.amounts(message.get("keeping", {}), "keeping")
    default = OutputRetention()
    return OutputRetention(
        amounts.get("stream_bytes", default.stream_bytes),
        amounts.get("node_bytes", default.node_bytes),
        amounts.get("age_ms", default.age_ms),
    )


def _parse_start(message: dict[str, Any]) -> StartOrder:
    job, raw = parse_job_id(message.get("job")), message.get("spec")
    tasks = [_parse_task_start(row) for row in parsing.expect(message.get("tasks"), "tasks", list, TASKS)]
    return StartOrder(job, None if raw is None else parse_spec(raw), tasks)


def _parse_task_start(row: object) -> TaskStart:
    """Parse a row; the GPU mask is left out if it is 0."""
    if not isinstance(row, list) or len(row) not in (3, 4):
        raise Malformed(f"tasks: want {TASKS}")
    gpus = parsing.gpu_mask(row[3]) if len(row) == 4 else 0
    return TaskStart(parsing.number(row[0], "index"), parsing.number(row[1], "attempt"), bool(row[2]), gpus)


def _parse_keys(message: dict[str, Any]) -> list[AttemptKey]:
    keys = []
    for row in parsing.expect(message.get("attempts"), "attempts", list, "a list of [job, index, attempt]"):
        if not isinstance(row, list) or len(row) != 3:
            raise Malformed("attempts: want a list of [job, index, attempt]")
        keys.append(
            (parse_job_id(row[0]), parsing.number(row[1], "index"), parsing.number(row[2], "attempt"))
        )
    return keys


def _parse_forget(message: dict[str, Any]) -> ForgetOrder:
    return ForgetOrder(
        [parse_job_id(job) for job in parsing.expect(message.get("jobs"), "jobs", list, "a list of job ids")]
    )


ORDER_PARSERS: dict[str, Callable[[dict[str, Any]], Order]] = {
    "hello": _parse_hello,
    "configure": _parse_configure,
    "start": _parse_start,
    "stop": lambda message: StopOrder(_parse_keys(message), parse_stop_mode(message)),
    "signal": lambda message: SignalOrder(parse_signals(message, parse_job_id)),
    "ack": lambda message: AckOrder(_parse_keys(message)),
    "forget": _parse_forget,
    "renew": lambda message: RenewOrder(
        parsing.number(message.get("said_ns"), "said_ns", parsing.CLOCK_NS_MAX)
    ),
    "quit": lambda _: QuitOrder(),
}


def _parse_container(raw: object, limits: AttemptLimits) -> KeeperContainer | None:
    if raw is None:
        return None
    fields = parsing.expect(raw, "spec.container", dict, "an object")
    texts = {
        name: parsing.text(value, f"spec.container.{name}")
        for name, value in fields.items()
        if name != "mounts"
    }
    user = texts.get("user")
    if user is not None and not USER.fullmatch(user):
        raise Malformed("spec.container.user: want numbers, as 1000 or 1000:1000")
    rows = parsing.expect(fields.get("mounts", []), "spec.container.mounts", list, MOUNTS)
    if not all(isinstance(row, list) and len(row) == 3 for row in rows):
        raise Malformed(f"spec.container.mounts: want {MOUNTS}")
    mounts = tuple(
        KeeperMount(parsing.text(source, "source"), parsing.text(to, "target"), bool(ro))
        for source, to, ro in rows
    )
    try:
        return KeeperContainer(**texts, mounts=mounts, limits=limits)
    except TypeError as error:
        raise Malformed(f"spec.container: {error}") from error


def _parse_sandbox(raw: object) -> KeeperSandbox | None:
    if raw is None:
        return None
    fields = parsing.expect(raw, "spec.sandbox", dict, "an object")
    paths = parsing.expect(fields.get("writable", []), "spec.sandbox.writable", list, "a list of paths")
    writable = tuple(parsing.text(path, "spec.sandbox.writable") for path in paths)
    return KeeperSandbox(bool(fields.get("network")), writable)


def _parse_engine(raw: object) -> KeeperContainerEngine | None:
    if raw is None:
        return None
    fields = parsing.expect(raw, "engine", dict, "an object")
    if not isinstance(fields.get("kind"), str) or fields["kind"] not in (PODMAN, DOCKER):
        raise Malformed(f"engine.kind: want {PODMAN} or {DOCKER}")
    return KeeperContainerEngine(
        kind=fields["kind"],
        program=parsing.text(fields.get("program"), "engine.program"),
        mounts=tuple(
            parsing.text(path, "engine.mounts")
            for path in parsing.expect(fields.get("mounts", []), "mounts", list, "")
        ),
        root=bool(fields.get("root")),
        init=bool(fields.get("init")),
        old_groups=bool(fields.get("old_groups")),
    )
