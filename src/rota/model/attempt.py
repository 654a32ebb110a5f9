"""AttemptBlock: where each task's current attempt is placed. StatusBlock: how it fares."""

from collections.abc import Mapping
from sys import byteorder
from typing import ClassVar, Self

import msgspec

from rota.model.columns import ints, zeros
from rota.model.ids import JobId, Key, NodeId
from rota.model.service import ServiceStatus
from rota.model.steps import StepMark

LOOKAHEAD = 1  # flag: reserves nothing, may wait on the node for room
EVICTED = 2  # flag: has to give way; its task is placed again
DRAINED = 4  # flag, beside EVICTED: its node is emptied, and the recovery owner of its job decides
_FIRST, _NONE = (1).to_bytes(4, byteorder), bytes(2)  # one task's columns of an attempt that is the first


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last decision on tasks of a block: what was chosen, over what."""

    why: str
    chosen: NodeId
    fitting: int  # nodes it could have gone to
    runner_up: NodeId | None = None
    points: float = 0.0  # of the chosen node
    runner_up_points: float = 0.0


class OldAttempt(msgspec.Struct, frozen=True, array_like=True):
    """A superseded attempt, where it was placed."""

    position: int
    number: int
    node: NodeId
    placed_at_ms: int
    flags: int = 0


class AttemptBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by scheduler. Number 0: never placed."""

    COLUMNS: ClassVar[Mapping[str, str]] = {
        "number": "u4",
        "tries": "u2",
        "node": "u2",
        "flags": "u1",
        "placed_at_ms": "i8",
    }

    job: JobId
    block: int
    number: bytes  # of the attempt: grows with each placement, never reused
    tries: bytes  # the try it serves
    node: bytes  # position in `nodes`
    flags: bytes
    placed_at_ms: bytes
    nodes: tuple[NodeId, ...] = ()
    older: tuple[OldAttempt, ...] = ()
    older_dropped: int = 0
    gpus: dict[int, int] = {}  # position -> its devices on the node, one bit each; only of what asks for some
    choice: Choice | None = None

    @property
    def key(self) -> Key:
        return Key(f"attempt/{self.job}/{self.block}")

    @classmethod
    def new(cls, job: JobId, block: int, size: int) -> Self:
        return cls(job, block, **zeros(cls, size))

    @classmethod
    def of_one(
        cls, job: JobId, node: NodeId, *, flags: int, placed_at_ms: int, gpus: dict[int, int], choice: Choice
    ) -> Self:
        """Of a job's only task, placed for the first time."""
        return cls(
            job,
            0,
            number=_FIRST,
            tries=_NONE,
            node=_NONE,
            flags=flags.to_bytes(1, byteorder),
            placed_at_ms=placed_at_ms.to_bytes(8, byteorder, signed=True),
            nodes=(node,),
            gpus=gpus,
            choice=choice,
        )


class OldStatus(msgspec.Struct, frozen=True, array_like=True):
    """How a superseded attempt ended."""

    position: int
    number: int
    state: int
    exit_code: int
    signal: int
    started_at_ms: int
    ended_at_ms: int
    ran_us: int
    cpu_us: int
    peak_kib: int
    reason: str | None
    steps: tuple[StepMark, ...] = ()
    life: ServiceStatus | None = None
    cause: str | None = None


class StatusBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by watcher. Where `number` is below the AttemptBlock's, the newer attempt is merely offered."""

    COLUMNS: ClassVar[Mapping[str, str]] = {
        "number": "u4",
        "state": "u1",
        "exit_code": "i2",
        "signal": "u1",
        "started_at_ms": "i8",
        "ended_at_ms": "i8",
        "ran_us": "i8",
        "cpu_us": "i8",
        "peak_kib": "u4",
    }

    job: JobId
    block: int
    number: bytes
    state: bytes  # AttemptState
    exit_code: bytes  # NO_EXIT_CODE where there is none
    signal: bytes  # 0 where there is none
    started_at_ms: bytes
    ended_at_ms: bytes
    ran_us: bytes
    cpu_us: bytes
    peak_kib: bytes
    reasons: dict[int, str] = {}
    older: tuple[OldStatus, ...] = ()
    older_dropped: int = 0
    steps: dict[int, tuple[StepMark, ...]] = {}  # position -> those that have begun, where there are any
    versions: dict[int, int] = {}  # position -> of its job's spec, where it is not the first
    lives: dict[int, ServiceStatus] = {}  # position -> how it lives, of services
    causes: dict[int, str] = {}  # position -> Cause, where there is one
    handles: dict[int, str] = {}  # position -> what a worker that is dialled calls it itself

    @property
    def key(self) -> Key:
        return Key(f"status/{self.job}/{self.block}")

    @classmethod
    def new(cls, job: JobId, block: int, size: int) -> Self:
        return cls(job, block, **zeros(cls, size))


def state_of(status: StatusBlock, position: int, number: int) -> int | None:
    """The AttemptState of a task's attempt, current or superseded; None: not known, or no longer."""
    if ints(status, "number")[position] == number:
        return status.state[position]
    older = (old.state for old in status.older if (old.position, old.number) == (position, number))
    return next(older, None)


NO_EXIT_CODE = -1
