"""Bounds of messages: a range for each number, a length for each text, a size for each list and map.

`check` validates a message where it arrives, before anything is computed from it. The tables below name every
field but the flags; a test compares them with the .proto files. Numbers that are stored or added to a clock
stay far below 2^63, so that sums of them still fit. The ranges are wider than what is sent today, so that the
next version is still understood; texts that are only shown are truncated where they are read, not refused.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rota.model.amounts import CPU, GPU, WHOLE_GPU
from rota.model.errors import BadField
from rota.model.limits import (
    AMOUNT_MAX,
    BODY_BYTES_MAX,
    COMMAND_BYTES_MAX,
    COUNT_MAX,
    CPU_MILLI_MAX,
    DISKS_MAX,
    DRAIN_SECONDS_MAX,
    EPOCH_MAX,
    FILES_BYTES_MAX,
    FILES_MAX,
    GPUS_MAX,
    GRACE_SECONDS_MAX,
    LABEL_VALUE_MAX,
    LABELS_MAX,
    LEASE_MS_MAX,
    MOUNTS_MAX,
    NAME_LENGTH_MAX,
    ORIGIN_BYTES_MAX,
    PATH_BYTES_MAX,
    RECORD_BYTES_MAX,
    RESOURCES_MAX,
    STATISTICS_LEAST_MS,
    STATISTICS_MOST_MS,
    STEPS_MAX,
    TIMEOUT_SECONDS_MAX,
)
from rota.model.names import NAME_HINT, is_label, is_resource

Check = Callable[[Any], None]
MessageCheck = Callable[[Any], None]  # a check of a whole message, for rules over several fields

COUNTER_MAX = 2**62  # of messages, streams and bytes
TIME_MS_MAX = 2**48  # wall clock: the year 10889
SPAN_US_MAX = 2**56  # 2,284 years of one core
ID_LENGTH_MAX = 64  # of jobs, machines and boots
TEXT_LENGTH_MAX = 256 * 1024  # a reason may quote a command of 128 KiB
REPORTS_MAX = 1_000_000  # attempts of one job in one message
JOBS_MAX = 100_000  # in one message
OWN_LABELS_MAX = 32  # that an agent adds to those of its configuration
CHUNK_BYTES_MAX = 4 << 20  # of a log: sixteen times what is sent
MESSAGE_BYTES_MAX = 64 << 20  # as configured for gRPC
UINT32_MAX = 2**32 - 1


def check(message: Any) -> None:
    """Raise BadField, with the field, its value and what would be accepted, if a message is out of bounds."""
    try:
        _check_fields(message)
    except _OutOfBounds as beyond:
        raise BadField(beyond.path.lstrip("."), beyond.problem, beyond.hint) from None


class _OutOfBounds(Exception):
    """A value is out of bounds. Its path is built as the exception unwinds: valid messages pay nothing."""

    def __init__(self, problem: str, hint: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.path = path

    def within(self, part: object) -> "_OutOfBounds":
        self.path = f"{part}{self.path}"
        return self


def _check_fields(message: Any) -> None:
    name = message.DESCRIPTOR.full_name
    rules = RULES[name]
    for descriptor, value in message.ListFields():
        rule = rules.get(descriptor.name)
        if rule is not None:
            try:
                rule(value)
            except _OutOfBounds as beyond:
                raise beyond.within(f".{descriptor.name}") from None
    for check_message in MESSAGE_CHECKS.get(name, ()):
        check_message(message)


@dataclass(frozen=True, slots=True)
class Number:
    most: int
    least: int = 0

    def __call__(self, value: int) -> None:
        if not self.least <= value <= self.most:
            raise _OutOfBounds(f"{value} is out of range", f"send {self.least} to {self.most}")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A list of numbers."""

    most: int
    least: int = 0
    entries: int = REPORTS_MAX

    def __call__(self, values: Any) -> None:
        _count(values, self.entries)
        found = values[:]  # a list: iterating it twice is faster than the protobuf container once
        if max(found) > self.most or min(found) < self.least:
            beyond = next(value for value in found if not self.least <= value <= self.most)
            raise _OutOfBounds(f"{beyond} is out of range", f"send {self.least} to {self.most}")


@dataclass(frozen=True, slots=True)
class Text:
    """A text or bytes of bounded length."""

    longest: int = TEXT_LENGTH_MAX

    def __call__(self, value: str | bytes) -> None:
        if len(value) > self.longest:
            raise _OutOfBounds(f"is {len(value)} long", f"send at most {self.longest}")


@dataclass(frozen=True, slots=True)
class ShortText:
    """A text for lists and log lines: short and printable."""

    longest: int = ID_LENGTH_MAX

    def __call__(self, value: str) -> None:
        if len(value) > self.longest or not value.isprintable():
            problem = f"{value[: self.longest]!r} cannot be used"
            raise _OutOfBounds(problem, f"send at most {self.longest} printable characters")


@dataclass(frozen=True, slots=True)
class Texts:
    longest: int
    entries: int

    def __call__(self, values: Any) -> None:
        _count(values, self.entries)
        length = max(map(len, values))
        if length > self.longest:
            raise _OutOfBounds(f"has an entry that is {length} long", f"send at most {self.longest}")


@dataclass(frozen=True, slots=True)
class Amounts:
    """A map of resources to amounts."""

    entries: int = RESOURCES_MAX + 4  # the four that every node has
    named: Callable[[str], bool] = is_resource

    def __call__(self, values: Mapping[str, int]) -> None:
        _count(values, self.entries)
        for name, amount in values.items():
            if not self.named(name):
                raise _OutOfBounds(f"{name[:60]!r} is not a name for a resource", NAME_HINT)
            most = _AMOUNTS.get(name, AMOUNT_MAX)
            if not 0 <= amount <= most:
                raise _OutOfBounds(f"{amount} is out of range", f"send 0 to {most}", f".{name[:60]}")


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map of texts to texts or bytes."""

    longest: int
    entries: int
    key_longest: int = NAME_LENGTH_MAX
    named: Callable[[str], bool] = bool

    def __call__(self, values: Mapping[str, str]) -> None:
        _count(values, self.entries)
        for name, value in values.items():
            if len(name) > self.key_longest or not self.named(name):
                raise _OutOfBounds(f"{name[:60]!r} is not a name", f"send at most {self.key_longest}")
            if len(value) > self.longest:
                raise _OutOfBounds(f"is {len(value)} long", f"send at most {self.longest}", f".{name[:60]}")


@dataclass(frozen=True, slots=True)
class ByPosition:
    """A map of row numbers to sparse values: what only few rows of the columns have."""

    rule: Check

    def __call__(self, values: Mapping[int, Any]) -> None:
        _count(values, REPORTS_MAX)
        for position, value in values.items():
            try:
                self.rule(value)
            except _OutOfBounds as beyond:
                raise beyond.within(f"[{position}]") from None


@dataclass(frozen=True, slots=True)
class Many:
    """A list of messages."""

    entries: int

    def __call__(self, values: Iterable[Any]) -> None:
        _count(values, self.entries)
        for position, value in enumerate(values):
            try:
                _check_fields(value)
            except _OutOfBounds as beyond:
                raise beyond.within(f"[{position}]") from None


nested_message = _check_fields


def checked_later(values: Any) -> None:
    """Messages that the receiver checks one by one, so that an invalid one does not affect the others."""
    _count(values, JOBS_MAX)


def _count(values: Any, most: int) -> None:
    if len(values) > most:
        raise _OutOfBounds(f"has {len(values)} entries", f"send at most {most}")


def columns(*names: str, optional: Iterable[str] = ()) -> MessageCheck:
    """Parallel lists, entry i of each for the same row; optional ones may be empty."""

    def check_message(message: Any) -> None:
        length = len(getattr(message, names[0]))
        for other in (*names[1:], *(name for name in optional if len(getattr(message, name)))):
            if (found := len(getattr(message, other))) != length:
                raise _OutOfBounds(f"has {found} entries", f"send {length}, as {names[0]} has", f".{other}")

    return check_message


def positions(column: str, *names: str) -> MessageCheck:
    """Maps whose keys are positions in a column."""

    def check_message(message: Any) -> None:
        length = len(getattr(message, column))
        for name in names:
            beyond = max(getattr(message, name), default=-1)
            if beyond >= length:
                raise _OutOfBounds(f"{beyond} is no position", f"send positions below {length}", f".{name}")

    return check_message


def required(name: str, least: int) -> MessageCheck:
    """A lower bound that also holds if the number is not sent."""

    def check_message(message: Any) -> None:
        if (value := getattr(message, name)) < least:
            raise _OutOfBounds(f"{value} is out of range", f"send at least {least}", f".{name}")

    return check_message


def zero_or(name: str, least: int) -> MessageCheck:
    """A lower bound for a number of which 0 means none."""

    def check_message(message: Any) -> None:
        if 0 < (value := getattr(message, name)) < least:
            raise _OutOfBounds(
                f"{value} is out of range", f"send at least {least}, or 0 for none", f".{name}"
            )

    return check_message


_AMOUNTS = {CPU: CPU_MILLI_MAX, GPU: GPUS_MAX * WHOLE_GPU}
_JOB = ShortText()
_INDEX, _ATTEMPT = Number(COUNT_MAX), Number(UINT32_MAX)
_COUNTER, _TIME, _BYTES = Number(COUNTER_MAX), Number(TIME_MS_MAX), Number(AMOUNT_MAX)
_EXIT_CODE, _SIGNAL = Number(2**31 - 1, -(2**31)), Number(255)
_TIMES = Numbers(TIME_MS_MAX)
_INDICES, _ATTEMPTS = Numbers(COUNT_MAX), Numbers(UINT32_MAX)
_SPAN_MS = Number(TIMEOUT_SECONDS_MAX * 1000)
_ARGV, _ENV = Texts(COMMAND_BYTES_MAX, REPORTS_MAX), Pairs(COMMAND_BYTES_MAX, REPORTS_MAX, COMMAND_BYTES_MAX)
_MARKS = Numbers(TIME_MS_MAX, entries=STEPS_MAX)
_OFFSETS = Numbers(COUNTER_MAX, entries=STEPS_MAX)

_FROM_NODE: dict[str, dict[str, Check]] = {
    "FromNode": {
        "n": _COUNTER,
        "hello": nested_message,
        "report": nested_message,
        "beat": nested_message,
        "leave": nested_message,
        "drain": nested_message,
        "away": nested_message,
        "resubmission": nested_message,
        "again": nested_message,
    },
    "Resubmission": {"job": _JOB, "record": Text(RECORD_BYTES_MAX)},
    "Hello": {
        "machine_id": ShortText(NAME_LENGTH_MAX * 3),  # of a worker that is dialled its address
        "boot_id": ShortText(),
        "version": ShortText(),
        "protocol": Number(UINT32_MAX),
        "capacity": Amounts(),
        "labels": Pairs(LABEL_VALUE_MAX, LABELS_MAX + OWN_LABELS_MAX, named=is_label),
        "epoch_seen": Number(EPOCH_MAX),
        "inventory": Many(JOBS_MAX),
        "drain": nested_message,
        "session": _COUNTER,
    },
    "Beat": {"load": nested_message},
    "Leave": {"reason": Text()},
    "Away": {"reason": Text()},
    "Again": {},
    "Drain": {"reason": Text(), "within_ms": Number(DRAIN_SECONDS_MAX * 1000)},
    "Report": {"jobs": Many(JOBS_MAX), "load": nested_message},
    "JobClaims": {
        "job": _JOB,
        "index": _INDICES,
        "attempt": _ATTEMPTS,
        "said": Numbers(255),
        "exit_code": Numbers(2**31 - 1, -(2**31)),
        "signal": Numbers(255),
        "started_at_ms": _TIMES,
        "ended_at_ms": _TIMES,
        "ran_us": Numbers(SPAN_US_MAX),
        "cpu_us": Numbers(SPAN_US_MAX),
        "peak_kib": Numbers(UINT32_MAX),
        "reasons": ByPosition(Text()),
        "steps": ByPosition(nested_message),
        "causes": ByPosition(ShortText()),
        "lives": ByPosition(nested_message),
        "handles": ByPosition(ShortText(NAME_LENGTH_MAX * 8)),
        "versions": ByPosition(Number(UINT32_MAX)),
        "gpus": ByPosition(Number(2**GPUS_MAX - 1)),
    },
    "Life": {
        "restarts": Number(UINT32_MAX),
        "exit_code": _EXIT_CODE,
        "signal": _SIGNAL,
        "ended_at_ms": _TIME,
        "health": ShortText(),
        "why": Text(),
    },
    "StepMarks": {
        "started_at_ms": _MARKS,
        "ended_at_ms": _MARKS,
        "exit_code": Numbers(2**31 - 1, -(2**31), STEPS_MAX),
        "signal": Numbers(255, entries=STEPS_MAX),
        "out_offset": _OFFSETS,
        "err_offset": _OFFSETS,
    },
    "Load": {
        "cpu_milli": Number(CPU_MILLI_MAX),
        "memory_free": _BYTES,
        "disk_free": _BYTES,
        "cores": Number(CPU_MILLI_MAX),
        "waiting_milli": Number(UINT32_MAX),
        "memory_total": _BYTES,
        "swap_total": _BYTES,
        "swap_free": _BYTES,
        "disks": Many(DISKS_MAX * 64),
        "gpus": Many(GPUS_MAX * 16),
        "shortage": Text(),
    },
    "Disk": {"path": Text(PATH_BYTES_MAX), "total": _BYTES, "free": _BYTES},
    "Gpu": {
        "name": Text(LABEL_VALUE_MAX),
        "busy": Number(10_000),
        "memory_total": _BYTES,
        "memory_used": _BYTES,
    },
    "LogChunk": {
        "id": _COUNTER,
        "offset": _COUNTER,
        "data": Text(CHUNK_BYTES_MAX),
        "missing": _COUNTER,
        "error": Text(),
        "at_ms": _TIME,
        "code": ShortText(),
        "mark_bytes": Numbers(UINT32_MAX),
        "mark_ms": _TIMES,
    },
    "Tail": {
        "job": _JOB,
        "index": _INDEX,
        "attempt": _ATTEMPT,
        "stream": ShortText(),
        "offset": _COUNTER,
        "data": Text(CHUNK_BYTES_MAX),
    },
    "Tails": {"tails": Many(JOBS_MAX)},
    "RenewRequest": {"csr": Text(16 * 1024)},
}

_TO_NODE: dict[str, dict[str, Check]] = {
    "ToNode": {
        "epoch": Number(EPOCH_MAX),
        "welcome": nested_message,
        "orders": nested_message,
        "open_log": nested_message,
        "close_log": nested_message,
        "pace": nested_message,
        "servers": nested_message,
        "resubmit": nested_message,
        "open_outputs": nested_message,
        "alive": nested_message,
        "trust": nested_message,
    },
    "Alive": {"echo": _COUNTER},
    "Resubmit": {"jobs": Texts(ID_LENGTH_MAX, JOBS_MAX)},
    "Welcome": {
        "name": ShortText(LABEL_VALUE_MAX),
        "heartbeat_ms": Number(3_600_000),
        "report_interval_ms": Number(3_600_000),
        "spread_ms": Number(86_400_000),
    },
    "Pace": {"report_interval_ms": Number(3_600_000), "spread_ms": Number(86_400_000)},
    "Servers": {"addresses": Texts(300, 1_000)},
    "Trust": {"ca": Text(64 * 1024), "spread_ms": Number(86_400_000)},
    "Orders": {
        "echo": _COUNTER,
        "stored": _COUNTER,
        "jobs": checked_later,
        "forget": Texts(ID_LENGTH_MAX, REPORTS_MAX),
    },
    "JobOrders": {
        "job": _JOB,
        "work": nested_message,
        "start_index": _INDICES,
        "start_attempt": _ATTEMPTS,
        "stop_index": _INDICES,
        "stop_attempt": _ATTEMPTS,
        "start_gpus": Numbers(2**64 - 1),
        "stop_how": Numbers(255),
        "signal_index": _INDICES,
        "signal_attempt": _ATTEMPTS,
        "signal_number": Numbers(64),
        "signal_n": Numbers(COUNTER_MAX),
    },
    "Work": {
        "name": ShortText(LABEL_VALUE_MAX),
        "argv": _ARGV,
        "env": _ENV,
        "workdir": Text(PATH_BYTES_MAX),
        "needs": Amounts(named=bool),
        "count": Number(COUNT_MAX),
        "grace_ms": Number(GRACE_SECONDS_MAX * 1000),
        "timeout_ms": _SPAN_MS,
        "run": ShortText(),
        "log_bytes": _BYTES,
        "limits": Amounts(named=bool),
        "steps": Many(STEPS_MAX),
        "files": Pairs(FILES_BYTES_MAX, FILES_MAX, PATH_BYTES_MAX),
        "container": nested_message,
        "lease_ms": Number(LEASE_MS_MAX),
        "version": Number(UINT32_MAX),
        "sandbox": nested_message,
        "stop_signal": Number(64),
        "restart": nested_message,
        "check": nested_message,
        "reports": nested_message,
        "record": Text(RECORD_BYTES_MAX),
    },
    "ReportDoor": {
        "url": Text(2048),
        "key": Text(1024),
        "node": ShortText(),
        "ca": Text(64 * 1024),
        "others": Texts(2048, 1_000),
    },
    "Restart": {
        "attempts": Number(UINT32_MAX),
        "within_ms": _SPAN_MS,
        "delay_ms": _SPAN_MS,
        "delay_max_ms": _SPAN_MS,
    },
    "Check": {
        "argv": _ARGV,
        "port": Number(65_535),
        "path": Text(2048),
        "code_from": Numbers(999, entries=1_000),
        "code_to": Numbers(999, entries=1_000),
        "interval_ms": _SPAN_MS,
        "timeout_ms": _SPAN_MS,
        "after_ms": _SPAN_MS,
        "failures": Number(UINT32_MAX),
        "successes": Number(UINT32_MAX),
    },
    "Step": {"name": ShortText(LABEL_VALUE_MAX), "argv": _ARGV, "env": _ENV, "timeout_ms": _SPAN_MS},
    "Container": {
        "image": Text(1024),
        "user": ShortText(),
        "network": ShortText(),
        "mounts": Many(MOUNTS_MAX),
        "workdir": Text(PATH_BYTES_MAX),
        "pull": ShortText(),
    },
    "Sandbox": {"writable": Texts(PATH_BYTES_MAX, MOUNTS_MAX)},
    "Mount": {"source": Text(PATH_BYTES_MAX), "target": Text(PATH_BYTES_MAX)},
    "OpenLog": {
        "id": _COUNTER,
        "job": _JOB,
        "index": _INDEX,
        "attempt": _ATTEMPT,
        "stream": ShortText(),
        "offset": _COUNTER,
        "since_ms": _TIME,
        "until_ms": _TIME,
        "tail_lines": _COUNTER,
    },
    "OpenOutputs": {"id": _COUNTER, "job": _JOB, "index": _INDEX, "paths": Texts(PATH_BYTES_MAX, 1_000)},
    "CloseLog": {"id": _COUNTER},
    "LogDone": {},
    "TailsKept": {},
    "RenewReply": {"certificate": Text(64 * 1024), "ca": Text(64 * 1024)},
}

_FROM_CONTROLLER: dict[str, dict[str, Check]] = {
    "ScheduleRequest": {
        "spec_json": Text(BODY_BYTES_MAX),
        "idempotency_key": Text(1024),
        "heard": nested_message,
    },
    "FollowRequest": {"job": Text(LABEL_VALUE_MAX), "heard": nested_message},
    "Heard": {"sequence": ShortText(), "logs": Many(20_000)},
    "LogPosition": {"index": _INDEX, "stream": Text(), "attempt": _ATTEMPT, "offset": _COUNTER},
    "BulkRequest": {"id": Text(LABEL_VALUE_MAX), "schedule": nested_message, "stop": nested_message},
    "BulkJob": {"spec_json": Text(BODY_BYTES_MAX), "idempotency_key": Text(1024)},
    "StopRequest": {
        "job": Text(LABEL_VALUE_MAX),
        "reason": Text(),
        "indices": Numbers(UINT32_MAX),
        "signal": ShortText(),
    },
    "UpdateRequest": {
        "job": Text(LABEL_VALUE_MAX),
        "fields_json": Text(BODY_BYTES_MAX),
        "if_version": Number(UINT32_MAX),
        "max_parallel": Number(COUNT_MAX),
    },
    "DeleteRequest": {"job": Text(LABEL_VALUE_MAX)},
    "PauseRequest": {"job": Text(LABEL_VALUE_MAX), "idempotency_key": Text(1024)},
    "ResumeRequest": {"job": Text(LABEL_VALUE_MAX), "idempotency_key": Text(1024)},
    "RestartRequest": {
        "job": Text(LABEL_VALUE_MAX),
        "indices": Numbers(UINT32_MAX),
        "idempotency_key": Text(1024),
    },
    "MoveRequest": {
        "job": Text(LABEL_VALUE_MAX),
        "indices": Numbers(UINT32_MAX),
        "to": Text(LABEL_VALUE_MAX),
        "idempotency_key": Text(1024),
    },
    "DrainRequest": {"node": Text(LABEL_VALUE_MAX), "deadline_ms": Number(DRAIN_SECONDS_MAX * 1000)},
    "PlanRequest": {"spec_json": Text(BODY_BYTES_MAX)},
    "WatchRequest": {
        "subscriber": Text(LABEL_VALUE_MAX),
        "after": ShortText(),
        "job": Text(LABEL_VALUE_MAX),
        "statistics_interval_ms": Number(STATISTICS_MOST_MS),
    },
    "AcknowledgeRequest": {"subscriber": Text(LABEL_VALUE_MAX), "sequence": ShortText()},
    "ResolveRequest": {
        "subscriber": Text(LABEL_VALUE_MAX),
        "job": Text(LABEL_VALUE_MAX),
        "first_index": Numbers(UINT32_MAX),
        "last_index": Numbers(UINT32_MAX),
        "attempt": Number(UINT32_MAX),
        "word": ShortText(),
    },
    "StateRequest": {},
    "SetPaceRequest": {"least_ms": Number(UINT32_MAX), "most_ms": Number(UINT32_MAX)},
}

_FROM_WORKER: dict[str, dict[str, Check]] = {
    "RegisterWorkerRequest": {"address": ShortText(300)},
    "DeregisterWorkerRequest": {"workerID": ShortText()},
    "StartJobResponse": {"jobID": ShortText(NAME_LENGTH_MAX * 8)},
    "StopJobResponse": {},
    "QueryJobResponse": {"errorText": Text(CHUNK_BYTES_MAX)},
    "StreamJobResponse": {"output": Text(CHUNK_BYTES_MAX)},
}

# Messages of nodes within are bytes here: the leader, and the agent, check them as if they had come directly.
_WORD = Text(MESSAGE_BYTES_MAX)
_SESSIONS = Numbers(COUNTER_MAX)

_WATCHER: dict[str, dict[str, Check]] = {
    "NodeBatch": {
        "n": _COUNTER,
        "address": ShortText(300),
        "epoch_seen": Number(EPOCH_MAX),
        "opened": Many(JOBS_MAX),
        "words": Many(JOBS_MAX),
        "heard_session": _SESSIONS,
        "heard_n": _SESSIONS,
        "leased": _SESSIONS,
        "loads": Many(JOBS_MAX),
        "closed": _SESSIONS,
    },
    "OpenedSession": {
        "session": _COUNTER,
        "certificate": Text(64 * 1024),
        "hello": _WORD,
        "origin": Text(ORIGIN_BYTES_MAX),
    },
    "SessionWord": {"session": _COUNTER, "word": _WORD},
    "SessionLoad": {"session": _COUNTER, "load": Text()},
    "LeaderBatch": {
        "epoch": Number(EPOCH_MAX),
        "echo": _COUNTER,
        "words": Many(JOBS_MAX),
        "ended": Many(JOBS_MAX),
        "addresses": Texts(300, 1_000),
        "ca": Text(64 * 1024),
    },
    "EndedSession": {"session": _COUNTER, "code": Number(16), "reason": Text()},
    "RenewWatcherRequest": {"csr": Text(16 * 1024)},
    "RenewWatcherReply": {"certificate": Text(64 * 1024), "ca": Text(64 * 1024)},
}

_OURS = _FROM_NODE | _TO_NODE | _FROM_CONTROLLER | _WATCHER
RULES: dict[str, dict[str, Check]] = {
    **{f"rota.v1.{name}": rules for name, rules in _OURS.items()},
    **{f"jobscheduler.{name}": rules for name, rules in _FROM_WORKER.items()},
}
_BESIDE = ("reasons", "steps", "causes", "lives", "handles", "versions", "gpus")
_REPORT_COLUMNS = (
    "attempt",
    "said",
    "exit_code",
    "signal",
    "started_at_ms",
    "ended_at_ms",
    "ran_us",
    "cpu_us",
)
MESSAGE_CHECKS: dict[str, tuple[MessageCheck, ...]] = {
    "rota.v1.JobClaims": (columns("index", *_REPORT_COLUMNS, "peak_kib"), positions("index", *_BESIDE)),
    "rota.v1.StepMarks": (columns(*_FROM_NODE["StepMarks"]),),
    "rota.v1.JobOrders": (
        columns("start_index", "start_attempt", "start_firm", optional=("start_gpus",)),
        columns("stop_index", "stop_attempt", optional=("stop_how",)),
        columns("signal_index", "signal_attempt", "signal_number", "signal_n"),
    ),
    "rota.v1.NodeBatch": (columns("heard_session", "heard_n"),),
    "rota.v1.Check": (columns("code_from", "code_to"),),
    "rota.v1.Welcome": (required("heartbeat_ms", 100),),
    "rota.v1.ResolveRequest": (columns("first_index", "last_index"),),
    "rota.v1.WatchRequest": (zero_or("statistics_interval_ms", STATISTICS_LEAST_MS),),
}
