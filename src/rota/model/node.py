"""NodeSpec, who a node is; NodeIntent, what an operator wants of it; NodeStatus, how it fares."""

from enum import StrEnum
from typing import Self

import msgspec

from rota.model.ids import Key, NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import EPOCH_AHEAD_MAX


class Eligibility(StrEnum):
    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"  # derived: draining, and nothing is left
    REVOKED = "revoked"  # its certificate opens nothing any more, and no other wish takes that back


DIALLED = "dialled"  # label and taint of nodes that are dialled: only what is pinned to one is placed there


class Dialled(msgspec.Struct, frozen=True):
    """A worker written by others, in place of an agent: we call it."""

    address: str
    worker_id: str  # another one each time it registers; empty: it has said goodbye


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who it is, from its join record. Written by apiserver."""

    id: NodeId
    name: str
    cluster: str = "default"
    labels: dict[str, str] = {}
    joined_at_ms: int = 0
    dialled: Dialled | None = None  # none: it has an agent, which calls

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/spec")

    def dialled_as(self, worker: Dialled) -> Self:
        return msgspec.structs.replace(self, dialled=worker)


class NodeIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator wants of it. Written by apiserver."""

    id: NodeId
    eligibility: Eligibility = Eligibility.OPEN
    taints: tuple[str, ...] = ()  # `key` or `key=value`: only work that tolerates them all is placed there
    drain_by_ms: int | None = None  # cluster time at which what still runs there is moved; None: it may end
    drain_all: bool = False  # then also what is started once, ever, and no job's bound on moves counts
    gone_at_ms: int | None = (
        None  # cluster time at which somebody said that it is gone, in the silence it then kept
    )
    revoked_until_ms: int | None = (
        None  # wall clock: until then a certificate of it might be shown or renewed
    )

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/wish")

    @property
    def revoked(self) -> bool:
        return self.eligibility is Eligibility.REVOKED

    @property
    def drains(self) -> bool:
        return self.eligibility is Eligibility.DRAINING


class LeaveNotice(msgspec.Struct, frozen=True, array_like=True):
    """The event that told of a node's leave, while a subscriber has not acknowledged it."""

    revision: int  # of its commit
    index: int  # its place there
    since_ms: int  # cluster time
    told_ms: int  # cluster time at which it was told last
    times: int = 1  # it was told

    def sent_again(self, now_ms: int) -> Self:
        return msgspec.structs.replace(self, told_ms=now_ms, times=self.times + 1)


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it said of itself, and whether it is there. Written by watcher."""

    id: NodeId
    state: NodeState
    machine_id: str
    boot_id: str
    version: str
    capacity: dict[str, int]
    labels: dict[str, str] = {}  # self-declared: arch, os, kernel, ...
    reason: str | None = None
    since_ms: int = 0
    leaving: bool = False  # it takes nothing new and goes when its work has ended: its own wish to be drained
    leaves_by_ms: int | None = None  # cluster time at which its machine is taken away; None: it ends its work
    shortage: str | None = None  # why it takes nothing new, by its own word
    silent_at_ms: int | None = None  # cluster time of its last word, while it is suspect or lost
    suspect_at_ms: int | None = None  # cluster time at which it was first suspected, while it is so or lost
    last_silence: tuple[int, int] | None = None  # cluster time of the word before it, and of that after it
    certificate_expires_at_ms: int | None = None  # wall clock; None: a node that is dialled has none
    notice: LeaveNotice | None = None  # of a node that left: told again until it is acknowledged
    certificate_ca: str = ""  # fingerprint of the authority that signed it; empty: by a release of before

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/status")

    @property
    def accepts_work(self) -> bool:
        """Whether it takes new work, as far as it says so itself."""
        return not self.leaving and self.shortage is None

    def with_state(self, state: NodeState, reason: str | None, since_ms: int) -> Self:
        return msgspec.structs.replace(self, state=state, reason=reason, since_ms=since_ms)

    def with_silence(self, silent_at_ms: int, suspect_at_ms: int) -> Self:
        return msgspec.structs.replace(self, silent_at_ms=silent_at_ms, suspect_at_ms=suspect_at_ms)

    def seen_again(self, state: NodeState, since_ms: int, now_ms: int) -> Self:
        status = self.with_state(state, None, since_ms)
        silence = self.silence_until(now_ms)
        return msgspec.structs.replace(status, silent_at_ms=None, suspect_at_ms=None, last_silence=silence)

    def silence_until(self, now_ms: int) -> tuple[int, int] | None:
        """Its last silence, which is over now if it is silent."""
        return self.last_silence if self.silent_at_ms is None else (self.silent_at_ms, now_ms)

    def with_leaving(self, reason: str, by_ms: int | None = None) -> Self:
        return msgspec.structs.replace(self, leaving=True, reason=reason, leaves_by_ms=by_ms)

    def without_leaving(self) -> Self:
        return msgspec.structs.replace(self, leaving=False, reason=None, leaves_by_ms=None)

    def may_accept_again(self, now: Self) -> bool:
        """Whether what it refused before may be welcome now."""
        then = (self.boot_id, self.capacity, self.shortage, self.leaving)
        return then != (now.boot_id, now.capacity, now.shortage, now.leaving)

    def with_notice(self, notice: LeaveNotice) -> Self:
        return msgspec.structs.replace(self, notice=notice)

    def with_shortage(self, shortage: str | None) -> Self:
        return msgspec.structs.replace(self, shortage=shortage)


class Connection(StrEnum):
    """The node's connection, as seen by this process: an observation, never stored."""

    UNKNOWN = "unknown"  # it has not called since we started
    UP = "up"
    DOWN = "down"


class RefusedHandshake(msgspec.Struct, frozen=True):
    """A node that calls and is not greeted, and why: an observation, never stored."""

    reason: str
    epoch_seen: int


def is_plausible_epoch(seen: int, epoch: int) -> bool:
    """Whether a node can have seen that epoch where its server leads this one; nodes may say anything."""
    return seen - epoch <= EPOCH_AHEAD_MAX


class DiskUsage(msgspec.Struct, frozen=True):
    """A file system of a node."""

    path: str
    total: int
    free: int


class GpuUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of a node, as far as its driver tells."""

    name: str
    busy: int | None = None  # in hundredths
    memory_total: int | None = None
    memory_used: int | None = None


class NodeLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node measured just now: an observation, never stored."""

    cpu_milli: int = 0  # in use
    memory_free: int | None = None
    disk_free: int | None = None  # where the node keeps its work
    cores: int = 0
    waiting_milli: int = 0  # processes that run or want to, in thousandths: the load average of a minute
    memory_total: int = 0
    swap_total: int = 0
    swap_free: int = 0
    disks: tuple[DiskUsage, ...] = ()
    gpus: tuple[GpuUsage, ...] = ()
    shortage: str | None = None  # why it takes nothing new


class ReportInterval(msgspec.Struct, frozen=True):
    """Written by apiserver. Both 0: as the server's configuration says."""

    least_ms: int = 0
    most_ms: int = 0

    @property
    def key(self) -> Key:
        return Key("pace/reports")
