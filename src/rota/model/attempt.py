"""AttemptBlock: where each task's newest attempt is placed. StatusBlock: its state as its node reported it.

Theory of operation: attempt numbers and fencing
------------------------------------------------
Messages between server and node may be lost, repeated, delayed and reordered, and either side may crash at
any point. Nothing is guarded by a handshake per attempt. Instead each attempt has a number, and every message
about it names (job, index, number).

**Numbers.** The scheduler gives the first attempt of a task number 1 and each later placement a higher one
(`AttemptBlock.number`). A number is never reused, also not after the task was scaled down and up again: that
is why `JobSpec.count` never shrinks. Beside it stands a second count, the *desired attempt number*
(`TaskBlock.wanted`, copied into `AttemptBlock.tries` when an attempt is placed). It grows only when
controllers decide on a retry. So an offer that was refused or withdrawn leads to a placement with a higher
number for the same `tries`, and costs no retry.

    TaskBlock.wanted  ==  AttemptBlock.tries    the attempt is for the desired retry: it counts
    TaskBlock.wanted  >   AttemptBlock.tries    controllers want another attempt: the scheduler places one
    StatusBlock.number == AttemptBlock.number   the state is about the newest attempt StatusBlock.number <
    AttemptBlock.number   the newest attempt is merely offered: its node has not answered

**Reports.** A node reports states of attempts by their numbers. The watcher applies a report only to the
attempt with that number that is placed on that node; a report about a superseded attempt may fill in its
history (`older`) and changes nothing else. So reports are idempotent, and a late one cannot undo a newer
decision.

**Orders.** A node starts an attempt only if its number is higher than every number it knows of that task, so
an offer that arrives twice or late starts nothing. A stop names the number it is for, so it cannot hit the
next attempt. What a node has and the server no longer counts is stopped as `superseded`.

**Durability.** An offer is sent after the commit of its AttemptBlock. A node acknowledges an offer, and the
server commits that before anything depends on it. For at_most_once and one_at_a_time jobs the node starts the
process only when it was told that its accept is durable: a crash of either side in between leads to no start,
or to one start that is known, never to two.

**Leaders.** Each message of a server carries its epoch. A node stores the highest epoch it has seen and
closes connections of lower ones, so a deposed leader can order nothing. A node that has seen a higher epoch
than its server raises the server's (`Engine.raise_epoch`) before it is accepted. Orders that answer a message
older than STALE_ORDER_MS are refused too: the server may have been paused since it decided.

**Leases.** one_at_a_time attempts also hold a lease, which nodes enforce by their own clock. The task is
placed again only after lease plus margin, when the attempt has provably ended, even if its node cannot be
reached.

**Servers without records.** A server that lost its records adopts jobs from nodes. It leaves out all numbers
that an earlier server may have given (`rota.model.adoption.attempts_before`), so that numbers stay unique.
"""

from collections.abc import Mapping
from sys import byteorder
from typing import ClassVar, Self

import msgspec

from rota.model.columns import ints, zeros
from rota.model.ids import JobId, Key, NodeId
from rota.model.service import ServiceStatus
from rota.model.steps import StepMark

LOOKAHEAD = 1  # flag: reserves nothing, and waits on the node for free resources
EVICTED = 2  # flag: is stopped and its task placed again
DRAINED = 4  # flag, beside EVICTED: its node is drained, and the recovery rule of its job decides
_FIRST, _NONE = (1).to_bytes(4, byteorder), bytes(2)  # columns of one task in its first attempt


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last placement decision on tasks of a block: the chosen node and the runner-up."""

    why: str
    chosen: NodeId
    fitting: int  # nodes that fitted
    runner_up: NodeId | None = None
    points: float = 0.0  # of the chosen node
    runner_up_points: float = 0.0


class OldAttempt(msgspec.Struct, frozen=True, array_like=True):
    """The placement of a superseded attempt."""

    position: int
    number: int
    node: NodeId
    placed_at_ms: int
    flags: int = 0


class AttemptBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest attempt of up to 256 consecutive tasks; number 0: never placed. Written by scheduler."""

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
    tries: bytes  # the desired attempt number that it was placed for
    node: bytes  # position in `nodes`
    flags: bytes
    placed_at_ms: bytes
    nodes: tuple[NodeId, ...] = ()
    older: tuple[OldAttempt, ...] = ()
    older_dropped: int = 0
    gpus: dict[int, int] = {}  # position -> its devices on the node, one bit each; only if it requests GPUs
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
        """The block of a job with a single task, placed for the first time: the most frequent case."""
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
    """The end of a superseded attempt."""

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
    """States of up to 256 attempts. Written by watcher.

    Where `number` is below the AttemptBlock's, the newest attempt is merely offered.
    """

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
    exit_code: bytes  # or NO_EXIT_CODE
    signal: bytes  # or 0
    started_at_ms: bytes
    ended_at_ms: bytes
    ran_us: bytes
    cpu_us: bytes
    peak_kib: bytes
    reasons: dict[int, str] = {}
    older: tuple[OldStatus, ...] = ()
    older_dropped: int = 0
    steps: dict[int, tuple[StepMark, ...]] = {}  # position -> started steps, if it has any
    versions: dict[int, int] = {}  # position -> version of the spec, if it is not the first
    lives: dict[int, ServiceStatus] = {}  # position -> status, of services only
    causes: dict[int, str] = {}  # position -> EndCause, if there is one
    handles: dict[int, str] = {}  # position -> the id that a dialled worker gave it

    @property
    def key(self) -> Key:
        return Key(f"status/{self.job}/{self.block}")

    @classmethod
    def new(cls, job: JobId, block: int, size: int) -> Self:
        return cls(job, block, **zeros(cls, size))


def state_of(status: StatusBlock, position: int, number: int) -> int | None:
    """The AttemptState of a task's attempt, current or superseded; None: unknown, or no longer kept."""
    if ints(status, "number")[position] == number:
        return status.state[position]
    older = (old.state for old in status.older if (old.position, old.number) == (position, number))
    return next(older, None)


NO_EXIT_CODE = -1
