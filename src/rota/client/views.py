"""Answers of the API as frozen, typed data; fields that this client does not know stay in `raw`."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from rota.client.errors import Broken
from rota.client.results import Life, Result

FINAL_JOB_STATES = frozenset({"succeeded", "failed", "canceled", "timed_out", "rejected"})
FINAL_TASK_STATES = frozenset({"succeeded", "failed", "canceled", "timed_out", "lost"})

View = TypeVar("View")


def raw_field() -> Any:
    return field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Warned:
    """A warning about a submitted job, such as a condition that no node satisfies at present."""

    field: str
    text: str
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Placement:
    """The last placement decision for a job: the node, the runner-up and their scores."""

    why: str = ""
    node: str | None = None
    points: float = 0.0
    fitting: int = 0
    runner_up: str | None = None
    runner_up_points: float | None = None
    at_ms: int | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class JobStatus:
    """The status of a job at one moment."""

    id: str
    state: str
    name: str = ""
    namespace: str = "default"
    kind: str = "batch"
    reason: str | None = None
    sentence: str = ""
    version: int = 1  # of its spec
    versions: Mapping[str, int] = field(default_factory=dict)  # running tasks by version, after an update
    rollout: Mapping[str, Any] | None = None  # of a service: progress of the newest version
    # Fields changed by an update: at_once, from_next_attempt.
    changed: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1
    done: int | None = None  # ended tasks; of a service the running ones
    priority: int = 50
    counts: Mapping[str, int] = field(default_factory=dict)
    submitted_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    user: str | None = None
    cluster: str | None = None
    spec: Mapping[str, Any] | None = None
    needs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by resource: amount and source
    placement: Placement | None = None
    warnings: tuple[Warned, ...] = ()
    healthy: int | None = None  # tasks of a service whose health checks pass
    down: int | None = None  # tasks of a service that wait for their restart
    restarts: int | None = None  # of tasks of a service, on their nodes
    adopted: Mapping[str, int] | None = None  # after a restart without a store: `at_ms`, `missing` tasks
    etag: str | None = None
    raw: Mapping[str, Any] = raw_field()

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_JOB_STATES

    @property
    def tasks_ended(self) -> int:
        return sum(self.counts.get(state, 0) for state in FINAL_TASK_STATES)


@dataclass(frozen=True)
class Step:
    """One of the commands that a task runs in order, and the offset of its output in that of the attempt."""

    step: int
    name: str
    state: str
    exit_code: int | None = None
    signal: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    stdout_offset: int | None = None
    stderr_offset: int | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Task:
    """The status of one task of a job, or of one of its attempts."""

    index: int = 0
    state: str = ""
    job: str = ""
    tries: int = 0
    attempt: int | None = None
    node: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    evicted: bool = False  # preempted by a task of higher priority
    placed_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    ran_ms: float | None = None
    cpu_ms: float | None = None
    peak_memory_bytes: int | None = None
    steps: tuple[Step, ...] = ()
    life: Life | None = None  # of a service
    result: Result | None = None  # None: not reported, or not requested
    attempts: tuple["Task", ...] = ()
    raw: Mapping[str, Any] = raw_field()

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_TASK_STATES


@dataclass(frozen=True)
class Why:
    """Why a job is waiting, counted over nodes, and what would let it start."""

    job: str
    waits: bool
    sentence: str = ""
    reasons: tuple[Mapping[str, Any], ...] = ()
    changes: tuple[str, ...] = ()
    position: int | None = None
    misses: tuple[Mapping[str, Any], ...] = ()
    starts_at_ms: int | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Outlook:
    """Where and when a job would start; `outcome` is now, wait or never."""

    outcome: str
    sentence: str = ""
    count: int = 1
    starts: int = 0
    places: tuple[Mapping[str, Any], ...] = ()
    evicts: tuple[Mapping[str, Any], ...] = ()
    reasons: tuple[Mapping[str, Any], ...] = ()
    changes: tuple[str, ...] = ()
    misses: tuple[Mapping[str, Any], ...] = ()
    position: int | None = None
    starts_at_ms: int | None = None
    grows: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Event:
    """An event and its reason."""

    seq: str
    kind: str
    at_ms: int | None = None
    job: str | None = None
    node: str | None = None
    namespace: str | None = None  # of an event without a job: about a cron or a namespace
    indices: tuple[tuple[int, int], ...] | None = None
    exit_codes: Mapping[str, int] | None = None
    step: int | None = None
    result: Mapping[str, Any] | None = None  # of task.reported
    counts: Mapping[str, int] | None = None  # of queue.changed and leader.elected
    why: str = ""
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Output:
    """A file in the ROTA_OUTPUT_DIR of a task."""

    path: str
    bytes: int = 0
    modified_at_ms: int | None = None
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class Chunk:
    """Part of one stream of one attempt, or a gap of `missing` bytes (0: unknown) with its reason."""

    index: int
    attempt: int
    stream: str
    offset: int = 0
    data: bytes = b""
    missing: int = 0
    reason: str | None = None
    at_ms: int = 0  # wall clock when the bytes had arrived; 0: unknown

    @property
    def is_gap(self) -> bool:
        return self.missing > 0 or self.reason is not None


@dataclass(frozen=True)
class Change(Generic[View]):
    """A changed entry of a list; `entry` is None if it left the list, and `gone` identifies it."""

    entry: View | None
    gone: Mapping[str, Any]
    seq: str | None  # pass it as `since` to resume after this change


_INNER: dict[type, dict[str, type]] = {
    Task: {"life": Life, "result": Result},
    JobStatus: {"placement": Placement},
}
_INNER_LISTS: dict[type, dict[str, type]] = {Task: {"steps": Step}, JobStatus: {"warnings": Warned}}


def read(view: type[View], answer: Any) -> View:
    """An instance of a view from a JSON answer; raises Broken if a required field is missing."""
    if not isinstance(answer, dict):
        raise Broken("internal", f"expected a {view.__name__}, the server sent something else")
    shape = _shape(view, tuple(answer))  # type: ignore[arg-type]  # a class is hashable
    if shape.lacks:
        raise Broken("internal", f"the server's {view.__name__} lacks a field")
    # Bypasses the constructor: that of a frozen dataclass sets field by field and takes ten times as long,
    # which matters for long lists.
    made = object.__new__(view)
    attributes = made.__dict__
    attributes.update(shape.defaults)
    attributes.update(answer)
    for name in shape.unknown:
        del attributes[name]
    for name, make in shape.factories:
        attributes[name] = make()
    for name, value in answer.items():
        if type(value) is list and name in attributes:
            attributes[name] = _frozen(value)
    if shape.nested:
        attributes.update(_inner(view, answer))
    attributes["raw"] = answer
    return made


def _inner(view: type[Any], answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of an answer that are views themselves."""
    found: dict[str, Any] = {}
    for name, kind in _INNER.get(view, {}).items():
        if answer.get(name) is not None:
            found[name] = read(kind, answer[name])
    for name, kind in _INNER_LISTS.get(view, {}).items():
        if name in answer:
            found[name] = tuple(read(kind, item) for item in listed(answer, name))
    if view is Task and "attempts" in answer:
        found["attempts"] = tuple(
            read(Task, {**answer, "attempts": [], **past}) for past in answer["attempts"]
        )
    return found


class _Shape(NamedTuple):
    """How to build a view from answers with a given set of fields."""

    lacks: bool  # a required field is missing
    unknown: tuple[str, ...]  # fields that the view does not have
    defaults: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]  # defaults of fields that are missing
    nested: bool  # some fields are views themselves


@lru_cache(maxsize=256)  # few server versions and few field selections occur
def _shape(view: type[Any], given: tuple[str, ...]) -> _Shape:
    known = [item for item in fields(view) if item.name != "raw"]
    plain = {item.name: item.default for item in known if item.default is not MISSING}
    made = {item.name: item.default_factory for item in known if item.default_factory is not MISSING}
    names = {item.name for item in known}
    inside = {*_INNER.get(view, {}), *_INNER_LISTS.get(view, {}), *(("attempts",) if view is Task else ())}
    return _Shape(
        lacks=not names - plain.keys() - made.keys() <= set(given),
        unknown=tuple(name for name in given if name not in names),
        defaults=plain,
        factories=tuple((name, make) for name, make in made.items() if name not in given),
        nested=not inside.isdisjoint(given),
    )


def with_needed(view: type[View], chosen: str | None) -> str | None:
    """The selected fields plus those that the view requires."""
    if chosen is None:
        return None
    needed = (
        item.name
        for item in fields(view)  # type: ignore[arg-type]  # every view is a dataclass
        if item.default is MISSING and item.default_factory is MISSING
    )
    return ",".join(dict.fromkeys((*needed, *chosen.split(","))))


def listed(answer: Any, key: str) -> list[Any]:
    """The entries of a list answer."""
    items = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(items, list):
        raise Broken("internal", f"expected a list of {key}, the server sent something else")
    return items


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
