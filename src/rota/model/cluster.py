"""Records of a cluster: its desired state (ClusterIntent), its state (ClusterRecord), and its machines."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import msgspec

from rota.model.ids import Key, NodeId
from rota.model.lifecycle import (
    CLUSTER,
    ClusterEvent,
    ClusterState,
    MachineEvent,
    MachineState,
    NodeState,
    step,
)
from rota.model.lifecycle import MACHINE as MACHINE_STEPS
from rota.model.limits import FAIL_AFTER_SECONDS, PROVIDER_PAUSE_LAST_MS

DEFAULT = "default"  # always exists, so that users need not know about clusters
NEVER_FAILS = 0.0  # as `fail_after_seconds` of a ClusterIntent
BY_HAND = "none"  # the provider of clusters whose nodes join and leave by hand
MACHINE = "machine"  # label of a node's enrolment: the requested machine that it is
PROVIDERS: dict[str, tuple[str, ...]] = {  # the providers, and the settings that each requires
    BY_HAND: (),
    "local": (),
    "command": ("create", "list", "remove"),
}
TYPE, REGION = "cluster_type", "region"  # labels that nodes have from their cluster

_NUMBER_DIGITS_MAX = 18  # of a machine: what a provider lists may be of any length


class ClusterIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The desired state of a cluster; without one, nodes join by hand. Written by apiserver."""

    name: str
    type: str = DEFAULT
    region: str | None = None
    labels: dict[str, str] = {}  # of its nodes
    provider: str = BY_HAND
    settings: dict[str, str] = {}  # of the provider
    capacity: dict[str, int] = {}  # of each machine that the provider creates
    min_nodes: int = 0
    max_nodes: int = 0
    nodes: int | None = None  # a fixed size; None: as many as the queued work needs
    idle_seconds: float = 60.0  # how long a node is empty before it is removed
    join_seconds: float = 120.0  # how long a machine may take to join before it is replaced
    pause_seconds: float = 5.0  # backoff after a failure of its provider; doubles with each in a row
    drain: bool = False  # it gets no new jobs
    end: bool = False  # and is deleted when it is empty
    min_clusters: int = 1  # of its group, itself included: others are created like it, and ended
    max_clusters: int = 1
    wait_seconds: float = 60.0  # how long its head of line waits before another cluster is created
    fail_after_seconds: float | None = None  # as `fails_after_seconds` reads it; None: not set by an operator

    @property
    def key(self) -> Key:
        return Key(f"cluster_wish/{self.name}")

    @property
    def by_hand(self) -> bool:
        return self.provider == BY_HAND

    @property
    def fails_after_seconds(self) -> float | None:
        """Seconds with all nodes lost after which the cluster fails; None: it never does.

        A provider replaces lost machines, so its cluster fails with the provider instead. The default
        cluster only fails where an operator has set a time: it is often a single computer that sleeps.
        """
        if not self.by_hand or self.fail_after_seconds == NEVER_FAILS:
            return None
        if self.fail_after_seconds is None:
            return None if self.name == DEFAULT else FAIL_AFTER_SECONDS
        return self.fail_after_seconds

    def for_cluster(self, cluster: "ClusterRecord") -> "ClusterIntent":
        """The intent for a cluster that was created like this one; it ends with it, or before."""
        copied = msgspec.structs.replace(self, name=cluster.name, min_clusters=1, max_clusters=1)
        if not cluster.closing:
            return copied
        return msgspec.structs.replace(copied, drain=True, end=True, nodes=None, min_nodes=0)

    def backoff_ms(self, failures: int) -> int:
        """The backoff of its provider after this many failures in a row."""
        # The shift is bounded: failures are counted without limit.
        return min(round(self.pause_seconds * 1000) << min(failures, 16), PROVIDER_PAUSE_LAST_MS)

    @property
    def node_labels(self) -> dict[str, str]:
        """Labels granted to every node that joins it."""
        region = {} if self.region is None else {REGION: self.region}
        return {**self.labels, **region, TYPE: self.type}


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a cluster. Written by clusters."""

    name: str
    state: ClusterState = ClusterState.READY
    reason: str | None = None  # of its own or its provider's last failure, until a node joins again
    since_ms: int = 0  # cluster time
    made: int = 0  # machines ever requested: their numbers are never reused
    failures: int = 0  # of its provider, in a row
    paused_until_ms: int = 0  # end of its provider's backoff
    like: str | None = None  # the cluster whose intent also applies to this one
    closing: bool = False  # of a cluster with `like`: it is no longer needed
    copies: int = 0  # clusters ever created like it: their numbers are never reused
    copied_ms: int = 0  # cluster time at which the last of them was requested
    found: dict[str, str] | None = None  # labels declared by its last machine; None: none has joined yet
    provider_message: str | None = msgspec.field(
        default=None, name="said"
    )  # for `reason`; may contain secrets

    @property
    def key(self) -> Key:
        return Key(f"cluster/{self.name}")

    @property
    def takes_jobs(self) -> bool:
        return self.state in (ClusterState.READY, ClusterState.RESIZING)

    @property
    def state_text(self) -> str:
        """The state as the end of a sentence."""
        return "has failed" if self.state is ClusterState.FAILED else f"is {self.state}"

    @property
    def may_take_jobs_later(self) -> bool:
        """Whether it may take jobs later without a request."""
        return self.state in (ClusterState.REQUESTED, ClusterState.PROVISIONING, ClusterState.UNAVAILABLE)

    def has_requested(self, machine: str) -> bool:
        """Whether it ever requested a machine of that name."""
        # Cut to a bounded length before it is parsed: the text comes from a provider.
        number = machine.removeprefix(f"{self.name}-")[:_NUMBER_DIGITS_MAX]
        is_number = number.isascii() and number.isdecimal() and machine == f"{self.name}-{int(number)}"
        return is_number and 0 < int(number) <= self.made

    def after_event(self, event: ClusterEvent, now_ms: int) -> Self:
        return msgspec.structs.replace(self, state=step(CLUSTER, self.state, event), since_ms=now_ms)

    def with_reason(self, reason: str | None) -> Self:
        return msgspec.structs.replace(self, reason=reason, provider_message=None)

    def with_provider_message(self, message: str) -> Self:
        return msgspec.structs.replace(self, provider_message=message)

    def with_requested(self, more: int) -> Self:
        return msgspec.structs.replace(self, made=self.made + more)

    def after_failure(self, backoff_ms: int, now_ms: int, reason: str, asked_ms: int) -> Self:
        """Record a failure of its provider and start a backoff.

        A machine requested before the last backoff belongs to the failure that was counted then.
        """
        # Machines of one step fail one after the other: counted singly, a large step would
        # use up all tries of its provider.
        if asked_ms < self.paused_until_ms:
            return self.with_reason(reason)
        until_ms = now_ms + backoff_ms
        return msgspec.structs.replace(
            self, failures=self.failures + 1, paused_until_ms=until_ms, reason=reason, provider_message=None
        )

    def with_copy(self, now_ms: int) -> "tuple[ClusterRecord, ClusterRecord]":
        """This record with one more copy counted, and the record of that copy."""
        number = self.copies + 1
        name, like = f"{self.name}.{number + 1}", self.name
        # With the labels that machines of the original had: jobs that need them can be
        # assigned before its first node joins.
        made = ClusterRecord(name, ClusterState.REQUESTED, since_ms=now_ms, like=like, found=self.found)
        return msgspec.structs.replace(self, copies=number, copied_ms=now_ms), made

    def with_closing(self) -> Self:
        return msgspec.structs.replace(self, closing=True)

    def with_joined_machine(self, labels: dict[str, str]) -> Self:
        """Record that a machine of its provider joined, with these labels: failures are reset."""
        return msgspec.structs.replace(
            self, failures=0, paused_until_ms=0, reason=None, provider_message=None, found=labels
        )


def why_no_node(nodes: Mapping[NodeState, int]) -> str:
    """Why no node of a cluster is present, from the number of nodes in each state."""
    lost = nodes.get(NodeState.LOST, 0)
    if lost:
        return "its only node is lost" if lost == 1 else f"all its {lost} nodes are lost"
    return "its nodes have left" if nodes.get(NodeState.LEFT) else "no node has joined"


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine requested from a provider. Written by clusters, and durable before the provider is called."""

    name: str
    cluster: str
    state: MachineState = MachineState.WANTED
    since_ms: int = 0  # cluster time
    asked_ms: int = 0  # cluster time at which it was first desired
    node: NodeId | None = None  # that it became
    reason: str | None = None  # why it is removed
    stuck: str | None = None  # why it still exists although its provider was asked to remove it
    place: str | None = None  # the server that called the provider; None: not called yet
    extra: int = 0  # further machines of the same name in the provider's listing

    @property
    def key(self) -> Key:
        return Key(f"machine/{self.name}")

    @property
    def is_being_removed(self) -> bool:
        """Whether it is being removed: its node takes no new tasks."""
        return self.state in (MachineState.DRAINING, MachineState.LEAVING)

    @property
    def is_being_created(self) -> bool:
        return self.state in (MachineState.WANTED, MachineState.CREATED)

    def after_event(self, event: MachineEvent, now_ms: int, reason: str | None = None) -> Self:
        state = step(MACHINE_STEPS, self.state, event)
        return msgspec.structs.replace(self, state=state, since_ms=now_ms, reason=reason or self.reason)

    def with_provider_call(self, place: str, now_ms: int) -> Self:
        """Record the call of the provider: the time to join counts from now."""
        return msgspec.structs.replace(self, place=place, since_ms=now_ms)

    def with_stuck(self, reason: str) -> Self:
        return msgspec.structs.replace(self, stuck=reason)

    def with_extra(self, extra: int) -> Self:
        """Record further machines of the same name."""
        return msgspec.structs.replace(self, extra=extra)

    def with_node(self, node: NodeId) -> Self:
        """Record the node that it became, before that node is ready."""
        return msgspec.structs.replace(self, node=node)

    def joined_as(self, node: NodeId, now_ms: int) -> Self:
        return msgspec.structs.replace(self.after_event(MachineEvent.JOINED, now_ms), node=node)


class ClusterFit(NamedTuple):
    """How well the open nodes of a cluster fit a job."""

    able: int  # nodes that could run a task of it if they were empty and connected
    free: int  # tasks of it that fit there now


class ScaleEstimate(NamedTuple):
    """How much a cluster would have to grow for its waiting tasks."""

    waiting: int  # tasks that do not fit, even with the machines that are being created
    nodes: int  # the fewest further nodes with which as many of them start as with the maximum
    starts: int  # tasks that start with these
