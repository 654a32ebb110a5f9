"""JobSpec, what a user wishes; JobStatus, what became of it; Shape, what a task of it needs of a node."""

from enum import StrEnum
from functools import cached_property

import msgspec

from rota.model.ids import JobId, Key
from rota.model.lifecycle import JOB_ENDS, JobState
from rota.model.limits import BLOCK_TASKS


class RunMode(StrEnum):
    AT_LEAST_ONCE = "at_least_once"
    ONE_AT_A_TIME = "one_at_a_time"
    AT_MOST_ONCE = "at_most_once"


class Recovery(StrEnum):
    """Who deals with a task whose node is lost: exactly one."""

    SCHEDULER = "scheduler"
    CONTROLLER = "controller"
    CANCEL = "cancel"
    NONE = "none"


class Unschedulable(StrEnum):
    """What to do with a task that fits nowhere now."""

    QUEUE = "queue"
    REJECT = "reject"


class Op(StrEnum):
    EQUAL = "=="
    UNEQUAL = "!="
    IN = "in"
    NOT_IN = "not in"
    EXISTS = "exists"
    LESS = "<"
    MORE = ">"


class Constraint(msgspec.Struct, frozen=True):
    """One condition on a node's labels."""

    label: str
    op: Op
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(filter(None, (self.label, self.op.value, ",".join(self.values))))


class Shape(msgspec.Struct, frozen=True):
    """What a task needs of a node. Tasks of one shape are placed together, whatever job they are of."""

    needs: tuple[tuple[str, int], ...]
    where: tuple[Constraint, ...]
    workdir: str | None
    run: RunMode


class JobSpec(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """What a user wishes. Written once, by apiserver."""

    id: JobId
    name: str
    command: tuple[str, ...]
    submitted_at_ms: int
    user: str = ""
    namespace: str = "default"
    env: dict[str, str] = {}
    workdir: str | None = None
    count: int = 1
    parallel: int | None = None
    needs: dict[str, int] = {}
    where: tuple[Constraint, ...] = ()
    priority: int = 50
    retries: int = 0
    timeout_seconds: float | None = None
    grace_seconds: float = 10.0
    run: RunMode = RunMode.AT_LEAST_ONCE
    recovery: Recovery = Recovery.SCHEDULER
    when_unschedulable: Unschedulable = Unschedulable.QUEUE
    labels: dict[str, str] = {}

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/spec")

    @property
    def blocks(self) -> int:
        return (self.count + BLOCK_TASKS - 1) // BLOCK_TASKS

    @cached_property
    def shape(self) -> Shape:
        return Shape(tuple(sorted(self.needs.items())), self.where, self.workdir, self.run)

    @cached_property
    def order(self) -> tuple[int, int]:
        """Whose turn: the higher priority, then the earlier."""
        return (-self.priority, int(self.id))

    def block_size(self, block: int) -> int:
        return min(BLOCK_TASKS, self.count - block * BLOCK_TASKS)


class JobWish(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user wishes since: that it ends. Written by apiserver."""

    id: JobId
    cancel: bool = False
    reason: str | None = None
    at_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/wish")


class JobCluster(msgspec.Struct, frozen=True):
    """Which cluster a job is for. Written by clusters."""

    id: JobId
    cluster: str

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/cluster")


class JobStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a job. Written by controllers."""

    id: JobId
    state: JobState
    reason: str | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/status")

    @property
    def ended(self) -> bool:
        return self.state in JOB_ENDS


class JobVerdict(msgspec.Struct, frozen=True):
    """That a job which did not want to wait cannot start now. Written by scheduler."""

    id: JobId
    reason: str

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/verdict")


class SubmitKey(msgspec.Struct, frozen=True):
    """An idempotency key and the job it made. Written by apiserver, in the spec's transaction."""

    namespace: str
    name: str
    job: JobId
    digest: str

    @property
    def key(self) -> Key:
        return Key(f"submit/{self.namespace}/{self.name}")


class Counters(msgspec.Struct, frozen=True):
    """The highest numbers given out. Written by apiserver; numbers are never given out twice."""

    jobs: int = 0
    nodes: int = 0

    @property
    def key(self) -> Key:
        return Key("meta/counters")
