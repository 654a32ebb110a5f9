"""Records of a node: its identity (NodeSpec), its desired state (NodeIntent), its state (NodeStatus)."""

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
    DRAINED = "drained"  # derived: draining and empty
    REVOKED = "revoked"  # its certificate is refused; permanent, no other request changes it


DIALLED = "dialled"  # label and taint of dialled nodes: only tasks that name such a node are placed there


class Dialled(msgspec.Struct, frozen=True):
    """A worker written by others, in place of an agent: the server connects to it."""

    address: str
    worker_id: str  # a new one at each registration; empty: it has deregistered


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The identity of a node, from its enrolment. Written by apiserver."""

    id: NodeId
    name: str
    cluster: str = "default"
    labels: dict[str, str] = {}
    joined_at_ms: int = 0
    dialled: Dialled | None = None  # None: it has an agent, which connects to the server

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/spec")

    def dialled_as(self, worker: Dialled) -> Self:
        return msgspec.structs.replace(self, dialled=worker)


class NodeIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The desired state of a node, as operators requested it. Written by apiserver."""

    id: NodeId
    eligibility: Eligibility = Eligibility.OPEN
    # `key` or `key=value`: only tasks that tolerate all of them are placed there.
    taints: tuple[str, ...] = ()
    drain_by_ms: int | None = None  # cluster time at which running tasks are moved; None: they may end
    drain_all: bool = False  # then also at_most_once tasks, and without the bounds of jobs on evictions
    gone_at_ms: int | None = None  # cluster time of an operator's confirmation that the silent node is lost
    revoked_until_ms: int | None = None  # wall clock until which a certificate of it could still be valid

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
    """The event of a node's leave, which is repeated until a subscriber has acknowledged it."""

    revision: int  # of its commit
    index: int  # within that commit
    since_ms: int  # cluster time
    told_ms: int  # cluster time at which it was last published
    times: int = 1  # how often it was published

    def sent_again(self, now_ms: int) -> Self:
        return msgspec.structs.replace(self, told_ms=now_ms, times=self.times + 1)


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The liveness of a node, and what it reported about itself. Written by watcher."""

    id: NodeId
    state: NodeState
    machine_id: str
    boot_id: str
    version: str
    capacity: dict[str, int]
    labels: dict[str, str] = {}  # self-declared: arch, os, kernel, ...
    reason: str | None = None
    since_ms: int = 0
    leaving: bool = False  # it drains itself: it takes no new tasks and leaves when its tasks have ended
    leaves_by_ms: int | None = None  # cluster time at which its machine is terminated; None: no such notice
    shortage: str | None = None  # why it takes no new tasks, as it reported
    silent_at_ms: int | None = None  # cluster time of its last message, while it is suspect or lost
    suspect_at_ms: int | None = None  # cluster time at which it became suspect, while it is suspect or lost
    last_silence: tuple[int, int] | None = None  # cluster times of the messages before and after it
    certificate_expires_at_ms: int | None = None  # wall clock; None: a dialled node has none
    notice: LeaveNotice | None = None  # of a node that left: repeated until it is acknowledged
    certificate_ca: str = ""  # fingerprint of the CA that signed it; empty: not recorded by an older release

    @property
    def key(self) -> Key:
        return Key(f"node/{self.id}/status")

    @property
    def accepts_work(self) -> bool:
        """Whether it takes new tasks, as it reported itself."""
        return not self.leaving and self.shortage is None

    def with_state(self, state: NodeState, reason: str | None, since_ms: int) -> Self:
        return msgspec.structs.replace(self, state=state, reason=reason, since_ms=since_ms)

    def with_silence(self, silent_at_ms: int, suspect_at_ms: int) -> Self:
        return msgspec.structs.replace(self, silent_at_ms=silent_at_ms, suspect_at_ms=suspect_at_ms)

    def seen_again(self, state: NodeState, since_ms: int, now_ms: int) -> Self:
        status = self.with_state(state, None, since_ms)
        # Kept in the record: the brake counts silences that ended lately, also under the next leader.
        silence = self.silence_until(now_ms)
        return msgspec.structs.replace(status, silent_at_ms=None, suspect_at_ms=None, last_silence=silence)

    def silence_until(self, now_ms: int) -> tuple[int, int] | None:
        """The last silence; if it is silent, the current one, which ends now."""
        return self.last_silence if self.silent_at_ms is None else (self.silent_at_ms, now_ms)

    def with_leaving(self, reason: str, by_ms: int | None = None) -> Self:
        return msgspec.structs.replace(self, leaving=True, reason=reason, leaves_by_ms=by_ms)

    def without_leaving(self) -> Self:
        return msgspec.structs.replace(self, leaving=False, reason=None, leaves_by_ms=None)

    def may_accept_again(self, now: Self) -> bool:
        """Whether a changed status means that it may accept tasks it refused before."""
        # What a node refused may have depended on any of these. A mere reconnect
        # changes none, so refusals stand.
        then = (self.boot_id, self.capacity, self.shortage, self.leaving)
        return then != (now.boot_id, now.capacity, now.shortage, now.leaving)

    def with_notice(self, notice: LeaveNotice) -> Self:
        return msgspec.structs.replace(self, notice=notice)

    def with_shortage(self, shortage: str | None) -> Self:
        return msgspec.structs.replace(self, shortage=shortage)


class Connection(StrEnum):
    """The node's connection, as seen by this process: an observation, never stored."""

    UNKNOWN = "unknown"  # it has not connected since this process started
    UP = "up"
    DOWN = "down"


class RefusedHandshake(msgspec.Struct, frozen=True):
    """Why the handshake of a node was refused: an observation, never stored."""

    reason: str
    epoch_seen: int


def is_plausible_epoch(seen: int, epoch: int) -> bool:
    """Whether a node can have seen that epoch, if its server has this one: the number is not verified."""
    # A node could claim any number: accepted without a bound, one bad node would use
    # up the epochs of its cluster.
    return seen - epoch <= EPOCH_AHEAD_MAX


class DiskUsage(msgspec.Struct, frozen=True):
    """A file system of a node."""

    path: str
    total: int
    free: int


class GpuUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU of a node, as far as its driver reports."""

    name: str
    busy: int | None = None  # in hundredths
    memory_total: int | None = None
    memory_used: int | None = None


class NodeLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """A load report of a node: an observation, never stored."""

    cpu_milli: int = 0  # in use
    memory_free: int | None = None
    disk_free: int | None = None  # on the file system of its data directory
    cores: int = 0
    waiting_milli: int = 0  # one-minute load average, in thousandths
    memory_total: int = 0
    swap_total: int = 0
    swap_free: int = 0
    disks: tuple[DiskUsage, ...] = ()
    gpus: tuple[GpuUsage, ...] = ()
    shortage: str | None = None  # why it takes no new tasks


class ReportInterval(msgspec.Struct, frozen=True):
    """Bounds on the load report interval, set by a controller; 0: as configured. Written by apiserver."""

    least_ms: int = 0
    most_ms: int = 0

    @property
    def key(self) -> Key:
        return Key("pace/reports")
