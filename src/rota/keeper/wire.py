"""Lines of the agent -> orders; results and state -> lines for the agent."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rota.keeper.containers import DOCKER, PODMAN, Container, Engine, Mount
from rota.keeper.rules import Key, Needs

PROTOCOL = 3  # 1 counted whole GPUs, and an order could not name them; 2 knew of no containers
LINE_BYTES = 64 << 20  # a start order of a million tasks takes about 15 MiB
TASKS = "a list of [index, attempt, firm] or [index, attempt, firm, gpus]"
MOUNTS = "a list of [source, target, read_only]"
USER = re.compile(r"\d{1,10}(:\d{1,10})?")
JOB = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")  # becomes a directory's name

encode = json.JSONEncoder(separators=(",", ":")).encode


class Malformed(ValueError):
    """An order that cannot be understood; its text says what would be."""


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
    container: Container | None = None  # None: a plain process

    def asks_for(self, name: str) -> bool:
        return any(need == name for need, _ in self.needs)


@dataclass(frozen=True, slots=True)
class Hello:
    pass


@dataclass(frozen=True, slots=True)
class Configure:
    node: str
    amounts: Mapping[str, int]
    gpus: tuple[str, ...]
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


@dataclass(frozen=True, slots=True)
class Ack:
    attempts: list[Key]


@dataclass(frozen=True, slots=True)
class Forget:
    jobs: list[str]


@dataclass(frozen=True, slots=True)
class Quit:
    pass


Order = Hello | Configure | Start | Stop | Ack | Forget | Quit


def parse(line: bytes) -> Order:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a line of JSON: {error}") from error
    if not isinstance(message, dict):
        raise Malformed('want an object such as {"op":"hello","protocol":3}')
    op = message.get("op")
    if not isinstance(op, str) or op not in READERS:
        raise Malformed(f"unknown op {op!r}: want one of {', '.join(READERS)}")
    return READERS[op](message)


def parse_spec(raw: object) -> Spec:
    fields = _is(raw, "spec", dict, "an object")
    argv = tuple(_text(part, "spec.argv") for part in _is(fields.get("argv"), "spec.argv", list, "a list"))
    if not argv or not argv[0]:
        raise Malformed("spec.argv: want a command and its arguments")
    env = _is(fields.get("env", {}), "spec.env", dict, "an object of strings")
    needs = _amounts(fields.get("needs", {}), "spec.needs")
    workdir, timeout_ms = fields.get("workdir"), fields.get("timeout_ms")
    run = fields.get("run", Run.AT_LEAST_ONCE)
    if run not in set(Run):
        raise Malformed(f"spec.run: want one of {', '.join(Run)}")
    return Spec(
        name=_text(fields.get("name", ""), "spec.name"),
        argv=argv,
        env={_variable(name): _text(value, f"spec.env.{name}") for name, value in env.items()},
        workdir=None if workdir is None else _text(workdir, "spec.workdir"),
        needs=tuple(sorted((name, amount) for name, amount in needs.items() if amount)),
        count=_number(fields.get("count", 1), "spec.count"),
        grace_ms=_number(fields.get("grace_ms", 10_000), "spec.grace_ms"),
        timeout_ms=None if timeout_ms is None else _number(timeout_ms, "spec.timeout_ms"),
        run=Run(run),
        text=encode(fields),
        container=_container(fields.get("container")),
    )


def job_id(value: object) -> str:
    if not isinstance(value, str) or not JOB.fullmatch(value):
        raise Malformed(f"job: want 1 to 128 letters, digits, '-', '_' or '.', got {str(value)[:80]!r}")
    return value


def events(started: Iterable[str], ended: Iterable[str], refused: Iterable[str]) -> bytes:
    """One line of events, each already encoded."""
    return (
        f'{{"op":"events","started":[{",".join(started)}],"ended":[{",".join(ended)}]'
        f',"refused":[{",".join(refused)}]}}\n'
    ).encode()


def error(reason: str) -> bytes:
    return f"{encode({'op': 'error', 'reason': reason})}\n".encode()


def _hello(message: dict[str, Any]) -> Hello:
    if message.get("protocol") != PROTOCOL:
        raise Malformed(f"protocol: this keeper speaks {PROTOCOL}")
    return Hello()


def _configure(message: dict[str, Any]) -> Configure:
    gpus = tuple(_text(gpu, "gpus") for gpu in _is(message.get("gpus", []), "gpus", list, "a list of ids"))
    if len(set(gpus)) != len(gpus):
        raise Malformed("gpus: want each id once")
    amounts = _amounts(message.get("amounts"), "amounts")
    return Configure(_text(message.get("node"), "node"), amounts, gpus, _engine(message.get("engine")))


def _start(message: dict[str, Any]) -> Start:
    job, raw = job_id(message.get("job")), message.get("spec")
    tasks = [_wanted(row) for row in _is(message.get("tasks"), "tasks", list, TASKS)]
    return Start(job, None if raw is None else parse_spec(raw), tasks)


def _wanted(row: object) -> Wanted:
    """GPUs are named only where some are given."""
    if not isinstance(row, list) or len(row) not in (3, 4):
        raise Malformed(f"tasks: want {TASKS}")
    gpus = _mask(row[3]) if len(row) == 4 else 0
    return Wanted(_number(row[0], "index"), _number(row[1], "attempt"), bool(row[2]), gpus)


def _attempts(message: dict[str, Any]) -> list[Key]:
    keys = []
    for row in _is(message.get("attempts"), "attempts", list, "a list of [job, index, attempt]"):
        if not isinstance(row, list) or len(row) != 3:
            raise Malformed("attempts: want a list of [job, index, attempt]")
        keys.append((job_id(row[0]), _number(row[1], "index"), _number(row[2], "attempt")))
    return keys


def _forget(message: dict[str, Any]) -> Forget:
    return Forget([job_id(job) for job in _is(message.get("jobs"), "jobs", list, "a list of job ids")])


READERS: dict[str, Callable[[dict[str, Any]], Order]] = {
    "hello": _hello,
    "configure": _configure,
    "start": _start,
    "stop": lambda message: Stop(_attempts(message)),
    "ack": lambda message: Ack(_attempts(message)),
    "forget": _forget,
    "quit": lambda _: Quit(),
}


def _is(value: object, field: str, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise Malformed(f"{field}: want {wanted}")
    return value


def _number(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise Malformed(f"{field}: want a whole number, 0 or more")
    return value


def _mask(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise Malformed("gpus: want a whole number of at most 64 bits, one for each device")
    return value


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or "\0" in value or not _encodable(value):
        raise Malformed(f"{field}: want text without NUL")
    return value


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write and no file system can
        return False
    return True


def _variable(name: str) -> str:
    if not name or "=" in name:
        raise Malformed("spec.env: want names without '='")
    return _text(name, "spec.env")


def _container(raw: object) -> Container | None:
    if raw is None:
        return None
    fields = _is(raw, "spec.container", dict, "an object")
    said = {
        name: _text(value, f"spec.container.{name}") for name, value in fields.items() if name != "mounts"
    }
    user = said.get("user")
    if user is not None and not USER.fullmatch(user):
        raise Malformed("spec.container.user: want numbers, as 1000 or 1000:1000")
    rows = _is(fields.get("mounts", []), "spec.container.mounts", list, MOUNTS)
    if not all(isinstance(row, list) and len(row) == 3 for row in rows):
        raise Malformed(f"spec.container.mounts: want {MOUNTS}")
    mounts = tuple(Mount(_text(source, "source"), _text(to, "target"), bool(ro)) for source, to, ro in rows)
    try:
        return Container(**said, mounts=mounts)
    except TypeError as error:
        raise Malformed(f"spec.container: {error}") from error


def _engine(raw: object) -> Engine | None:
    if raw is None:
        return None
    fields = _is(raw, "engine", dict, "an object")
    if fields.get("kind") not in (PODMAN, DOCKER):
        raise Malformed(f"engine.kind: want {PODMAN} or {DOCKER}")
    return Engine(
        kind=fields["kind"],
        program=_text(fields.get("program"), "engine.program"),
        mounts=tuple(
            _text(path, "engine.mounts") for path in _is(fields.get("mounts", []), "mounts", list, "")
        ),
        root=bool(fields.get("root")),
        init=bool(fields.get("init")),
        old_groups=bool(fields.get("old_groups")),
    )


def _amounts(value: object, field: str) -> dict[str, int]:
    amounts = _is(value, field, dict, "an object of whole numbers")
    return {_text(name, field): _number(amount, f"{field}.{name}") for name, amount in amounts.items()}
