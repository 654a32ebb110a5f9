"""Cluster, a named group of nodes; ClusterIntent, what is wanted of it; Machine, one that was asked for."""

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

DEFAULT = "default"  # always there, so that nobody has to know about clusters
NEVER_FAILS = 0.0  # as `fail_after_seconds` of a ClusterIntent
BY_HAND = "none"  # the provider of clusters whose nodes come and go by hand
MACHINE = "machine"  # label of a node's join record: which of the machines that were asked for it is
PROVIDERS: dict[str, tuple[str, ...]] = {  # those there are, and the settings that each needs
    BY_HAND: (),
    "local": (),
    "command": ("create", "list", "remove"),
}
TYPE, REGION = "cluster_type", "region"  # labels that nodes have from their cluster

_NUMBER_DIGITS_MAX = 18  # of a machine: what a provider lists may be of any length


class ClusterIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by apiserver. A cluster without one has nodes that join by hand."""

    name: str
    type: str = DEFAULT
    region: str | None = None
    labels: dict[str, str] = {}  # of its nodes
    provider: str = BY_HAND
    settings: dict[str, str] = {}  # the provider's own
    capacity: dict[str, int] = {}  # of each machine that the provider makes
    min_nodes: int = 0
    max_nodes: int = 0
    nodes: int | None = None  # so many, whatever waits; None: as many as the work needs
    idle_seconds: float = 60.0  # that a node is empty before it goes
    join_seconds: float = 120.0  # that a machine may take to join before it is replaced
    pause_seconds: float = 5.0  # after a failure of its provider; twice as long after each in a row
    drain: bool = False  # it gets no new jobs
    end: bool = False  # and is forgotten when nothing is left of it
    min_clusters: int = 1  # of the same kind, itself among them: others are made like it, and ended
    max_clusters: int = 1
    wait_seconds: float = 60.0  # that the first in its queue waits before another cluster is made
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
        """The same, for one that was made like it: it ends with it, or before."""
        alike = msgspec.structs.replace(self, name=cluster.name, min_clusters=1, max_clusters=1)
        if not cluster.closing:
            return alike
        return msgspec.structs.replace(alike, drain=True, end=True, nodes=None, min_nodes=0)

    def pause_ms(self, failures: int) -> int:
        """How long its provider is left alone that has failed so often in a row before."""
        return min(round(self.pause_seconds * 1000) << min(failures, 16), PROVIDER_PAUSE_LAST_MS)

    @property
    def node_labels(self) -> dict[str, str]:
        """What is said of every node that joins it."""
        region = {} if self.region is None else {REGION: self.region}
        return {**self.labels, **region, TYPE: self.type}


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How it stands. Written by clusters."""

    name: str
    state: ClusterState = ClusterState.READY
    reason: str | None = None  # of its own or its provider's last failure, until a node joins again
    since_ms: int = 0  # cluster time
    made: int = 0  # machines that were ever asked for: a number is given once
    failures: int = 0  # of its provider, in a row
    paused_until_ms: int = 0  # nothing more is asked of its provider before that
    like: str | None = None  # the cluster whose wish is also this one's
    closing: bool = False  # of such a one: it is not needed any more
    copies: int = 0  # made like it, ever: a number is given once
    copied_ms: int = 0  # cluster time, when the last of them was asked for
    found: dict[str, str] | None = (
        None  # labels that its last machine has found out; None: none has joined yet
    )
    said: str | None = None  # words of its provider that belong to `reason`; they may hold keys

    @property
    def key(self) -> Key:
        return Key(f"cluster/{self.name}")

    @property
    def takes_jobs(self) -> bool:
        return self.state in (ClusterState.READY, ClusterState.RESIZING)

    @property
    def standing(self) -> str:
        """Its state, as the end of a sentence."""
        return "has failed" if self.state is ClusterState.FAILED else f"is {self.state}"

    @property
    def is_to_come(self) -> bool:
        """Whether it may take jobs later by itself."""
        return self.state in (ClusterState.REQUESTED, ClusterState.PROVISIONING, ClusterState.UNAVAILABLE)

    def gave(self, machine: str) -> bool:
        """Whether it has ever asked for one of that name."""
        number = machine.removeprefix(f"{self.name}-")[:_NUMBER_DIGITS_MAX]
        is_number = number.isascii() and number.isdecimal() and machine == f"{self.name}-{int(number)}"
        return is_number and 0 < int(number) <= self.made

    def turned(self, event: ClusterEvent, now_ms: int) -> Self:
        return msgspec.structs.replace(self, state=step(CLUSTER, self.state, event), since_ms=now_ms)

    def because(self, reason: str | None) -> Self:
        return msgspec.structs.replace(self, reason=reason, said=None)

    def quoting(self, said: str) -> Self:
        return msgspec.structs.replace(self, said=said)

    def asked_for(self, more: int) -> Self:
        return msgspec.structs.replace(self, made=self.made + more)

    def failed(self, pause_ms: int, now_ms: int, reason: str, asked_ms: int) -> Self:
        """Its provider did, and is left alone for so long.

        What was asked for before the last pause belongs to the failure that was counted then.
        """
        if asked_ms < self.paused_until_ms:
            return self.because(reason)
        until_ms = now_ms + pause_ms
        return msgspec.structs.replace(
            self, failures=self.failures + 1, paused_until_ms=until_ms, reason=reason, said=None
        )

    def another(self, now_ms: int) -> "tuple[ClusterRecord, ClusterRecord]":
        """Itself, which has one more that is like it, and that one."""
        number = self.copies + 1
        name, like = f"{self.name}.{number + 1}", self.name
        made = ClusterRecord(name, ClusterState.REQUESTED, since_ms=now_ms, like=like, found=self.found)
        return msgspec.structs.replace(self, copies=number, copied_ms=now_ms), made

    def closed(self) -> Self:
        return msgspec.structs.replace(self, closing=True)

    def joined_by(self, labels: dict[str, str]) -> Self:
        """Its provider makes machines, and such ones."""
        return msgspec.structs.replace(
            self, failures=0, paused_until_ms=0, reason=None, said=None, found=labels
        )


def why_no_node(nodes: Mapping[NodeState, int]) -> str:
    """Why no node of a cluster is there, by how many are in each state."""
    lost = nodes.get(NodeState.LOST, 0)
    if lost:
        return "its only node is lost" if lost == 1 else f"all its {lost} nodes are lost"
    return "its nodes have left" if nodes.get(NodeState.LEFT) else "no node has joined"


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One that a provider was asked for. Written by clusters, before it is asked."""

    name: str
    cluster: str
    state: MachineState = MachineState.WANTED
    since_ms: int = 0  # cluster time
    asked_ms: int = 0  # the same, when it was first wanted
    node: NodeId | None = None  # that it became
    reason: str | None = None  # for which it goes
    stuck: str | None = None  # why it still has not gone, though its provider was asked
    place: str | None = None  # from where its provider was asked for it; None: it was not, yet
    extra: int = 0  # machines of the same name beside it, as its provider lists them

    @property
    def key(self) -> Key:
        return Key(f"machine/{self.name}")

    @property
    def goes(self) -> bool:
        """Its node takes nothing new."""
        return self.state in (MachineState.DRAINING, MachineState.LEAVING)

    @property
    def comes(self) -> bool:
        return self.state in (MachineState.WANTED, MachineState.CREATED)

    def turned(self, event: MachineEvent, now_ms: int, reason: str | None = None) -> Self:
        state = step(MACHINE_STEPS, self.state, event)
        return msgspec.structs.replace(self, state=state, since_ms=now_ms, reason=reason or self.reason)

    def asked_at(self, place: str, now_ms: int) -> Self:
        """From now on its time to join runs."""
        return msgspec.structs.replace(self, place=place, since_ms=now_ms)

    def kept(self, reason: str) -> Self:
        return msgspec.structs.replace(self, stuck=reason)

    def beside(self, extra: int) -> Self:
        """So many more there are of it."""
        return msgspec.structs.replace(self, extra=extra)

    def known_as(self, node: NodeId) -> Self:
        """A node that is not ready yet: what becomes of the machine becomes of it."""
        return msgspec.structs.replace(self, node=node)

    def became(self, node: NodeId, now_ms: int) -> Self:
        return msgspec.structs.replace(self.turned(MachineEvent.JOINED, now_ms), node=node)


class ClusterFit(NamedTuple):
    """Of the nodes of one cluster that take work."""

    able: int  # nodes that could run a task of it, were they empty and connected
    free: int  # tasks of it that have room there now


class ScaleEstimate(NamedTuple):
    """By how much a cluster would have to grow for those who wait in it."""

    waiting: int  # tasks that find no room, also when the machines on their way are there
    nodes: int  # the fewest more with which as many of them start as with the most there may be
    starts: int  # tasks that start with these
