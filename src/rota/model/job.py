"""JobSpec, what a user wishes; JobStatus, what became of it."""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from rota.model.cluster import DEFAULT
from rota.model.container import RUNTIME, SANDBOX, ContainerSpec, SandboxSpec
from rota.model.dependency import Dependency
from rota.model.ids import JobId, Key, NodeId
from rota.model.lifecycle import JOB_ENDS, JobState
from rota.model.limits import (
    BLOCK_TASKS,
    CONTROLLER_WAIT_SECONDS,
    LEASE_MARGIN_MS,
    LEASE_MARGIN_SHARE,
    LEASE_MS,
)
from rota.model.node import DIALLED
from rota.model.recovery import PLAIN, Retry, WhenControllerAbsent
from rota.model.result import Reporter
from rota.model.service import SIGTERM, HealthCheck, RestartPolicy, RolloutPolicy
from rota.model.shape import (
    LEASES,
    NO_AFFINITY_RULES,
    AffinityRules,
    AffinityTerm,
    Constraint,
    Op,
    Owner,
    Policy,
    Preference,
    QueueKey,
    RunMode,
    Shape,
    SpreadTerm,
)
from rota.model.steps import Step
from rota.model.structures import lazy


class MoveOrder(msgspec.Struct, frozen=True, array_like=True):
    """The attempt that leaves its node, and where the task may go. Part of a JobIntent."""

    attempt: int  # the attempt that is stopped
    tries: int  # the try that this attempt serves
    source: NodeId  # the node that the task leaves
    target: NodeId | None  # the node that it goes to; None: any node but the one it leaves
    at_ms: int  # cluster time of the order
    leaves: bool = True  # False: a task of a gang that is stopped because another one leaves its node


class NeedOrigin(StrEnum):
    EXPLICIT = "explicit"  # its own
    NAMESPACE = "namespace"
    OBSERVED = "observed"  # nobody's: the last of its name used so much
    DEFAULT = "default"


QueueRank = tuple[int, int, int]  # whose turn it is: the smaller first, the last is the job's number


class QueueChange(NamedTuple):
    """A job joined or left a line, or has other prospects in it than before."""

    queue: QueueKey
    joined: QueueRank | None = None
    is_better: bool = False  # it may start now, though nothing else has changed


_NO_DEADLINE = 2**62


class JobKind(StrEnum):
    """What a job is for, and so when it is over."""

    BATCH = "batch"  # over when all its tasks are
    SERVICE = "service"  # kept running until it is canceled
    SYSTEM = "system"  # one task on every node that fits


_SYSTEM = JobKind.SYSTEM  # enum members are slow to look up, and this one is asked for at every change


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
    SCALE = "scale"  # it waits, and asks for a node


class UnplaceableCause(StrEnum):
    """Why no node can take tasks of a job."""

    NONE = ""  # some node can, or may be able to
    INFEASIBLE = "never"  # no node could run it, even if it were empty
    REFUSED = "refused"  # every node that could run it has refused it
    NO_FREE_NODE = "waits"  # no node has room now; told only of a job that asks for nodes


class JobSpec(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """What a user wishes. Written by apiserver: once, and again at each update."""

    id: JobId
    name: str
    command: tuple[str, ...]  # empty where there are steps
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
    tolerate: tuple[str, ...] = ()
    prefer: tuple[Preference, ...] = ()
    near: tuple[AffinityTerm, ...] = ()
    apart: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()
    gang: bool = False  # all tasks at once, or none
    policy: Policy = Policy.SPREAD
    noise: str | None = None  # the kind of disturbance it makes and suffers from
    preemptible: bool = True  # may give way to work of higher priority
    move_pending: bool = True  # while nothing of it runs, it may change over to another cluster
    evict_at_most: int | None = None  # how many of its tasks may have to give way at one time
    expect_seconds: float | None = None  # how long a task runs, as far as its user knows
    deadline_at_ms: int | None = None  # wall clock by which it has to be over
    log_bytes: int | None = None  # output kept of each stream of an attempt; None: as its node says
    limits: dict[str, int] = {}  # memory in bytes, cpu in thousandths, pids; what is beyond is not to be had
    steps: tuple[Step, ...] = ()  # run in order instead of a command
    files: dict[str, bytes] = {}  # by path, written into its working directory
    container: ContainerSpec | None = None  # none: plain processes
    kind: JobKind = JobKind.BATCH
    queue_timeout_seconds: float | None = None  # how long a task of it may wait to be placed
    retry: Retry = PLAIN  # which of its failures are worth a retry, and when
    version: int = 1  # one more at each update
    keep_seconds: float | None = None  # how long it is remembered after its end; None: as the server says
    after: tuple[Dependency, ...] = ()  # jobs that have to end first; their numbers are smaller than its own
    stop_signal: int = SIGTERM  # by which it is asked to end
    restart: RestartPolicy = RestartPolicy()  # of a service
    check: HealthCheck | None = None  # of a service; none: that it runs is enough
    rollout: RolloutPolicy = RolloutPolicy()  # of a service
    sandbox: SandboxSpec | None = None
    lease_seconds: float | None = None  # of one_at_a_time; None: as usual
    lease_margin_seconds: float | None = None
    rerun_of: str = ""  # the job that it runs once more
    carried: tuple[tuple[int, int], ...] = ()  # tasks, from .. to, that had succeeded there
    controller: str = ""  # where that recovers it: the subscriber, of the same user
    when_no_controller: WhenControllerAbsent = WhenControllerAbsent.WAIT
    controller_wait_seconds: float = CONTROLLER_WAIT_SECONDS  # that it may be away before that counts
    cluster: str | None = None  # the only one it may run in; None: any that can serve it
    results: bool | Reporter = False  # true: its tasks are given a token by which they report themselves
    home: str = DEFAULT  # the cluster it is assigned to, as JobCluster says; that alone counts
    kept: int | None = None  # of its tasks only the first so many are wanted; None: there never were more
    origins: dict[str, NeedOrigin] = {}  # by whose word it asks for so much; empty: nobody noted it
    observed: dict[str, int] = {}  # what the last of its name used beyond that: by it its cluster is chosen

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/spec")

    @property
    def series(self) -> str:
        """What it is a run of: those of one name use alike; runs of a cron have names of their own."""
        return self.labels.get("cron") or self.name

    @property
    def recovery_controller(self) -> str | None:
        """The subscriber that alone says what becomes of lost tasks."""
        return f"{self.user}:{self.controller}" if self.recovery is Recovery.CONTROLLER else None

    @property
    def is_service(self) -> bool:
        """Its tasks are kept running: whatever way one ends, it is wanted again."""
        return self.kind is JobKind.SERVICE

    @property
    def size(self) -> int:
        """How many tasks its user wants; `count` is how many there have ever been."""
        return self.count if self.kept is None else self.kept

    def is_scaled_down(self, index: int) -> bool:
        """There is such a task, and it is more than are wanted."""
        return self.kept is not None and index >= self.kept

    @property
    def blocks(self) -> int:
        return (self.count + BLOCK_TASKS - 1) // BLOCK_TASKS

    @lazy
    def conditions(self) -> tuple[Constraint, ...]:
        """On a node's labels: those it names, and those that what it is implies."""
        if self.container is None and self.sandbox is None and self.run is not RunMode.ONE_AT_A_TIME:
            return self.where
        implied = ((self.container, RUNTIME), (self.sandbox, SANDBOX), (self.lease_ms, LEASES))
        return (*self.where, *(condition for what, condition in implied if what is not None))

    @lazy
    def tolerated(self) -> tuple[str, ...]:
        """Taints it does not mind. Whoever names a node means that one, also where it is dialled."""
        names_one = [one for one in self.where if one.label == "node" and one.op is Op.EQUAL]
        return (*self.tolerate, DIALLED) if names_one else self.tolerate

    @lazy
    def lease_ms(self) -> int | None:
        """How long an attempt may run without a word of the control plane; None: for ever."""
        if self.run is not RunMode.ONE_AT_A_TIME:
            return None
        return LEASE_MS if self.lease_seconds is None else round(self.lease_seconds * 1000)

    @lazy
    def lease_margin_ms(self) -> int:
        """How much longer than that nobody takes its place."""
        if self.lease_margin_seconds is not None:
            return round(self.lease_margin_seconds * 1000)
        return max(LEASE_MARGIN_MS, round(LEASE_MARGIN_SHARE * (self.lease_ms or 0)))

    @lazy
    def shape(self) -> Shape:
        return Shape(
            needs=tuple(sorted(self.needs.items())),
            where=self.conditions,
            run=self.run,
            tolerate=self.tolerated if self.where else self.tolerate,
            prefer=self.prefer,
            noise=self.noise,
            policy=self.policy,
            inside=() if self.container is None else self.container.wants,
            cluster=self.home,
        )

    @lazy
    def rules(self) -> AffinityRules:
        if not (self.near or self.apart or self.spread or self.gang):
            return NO_AFFINITY_RULES
        return AffinityRules(self.near, self.apart, self.spread, self.gang)

    @lazy
    def queue_key(self) -> QueueKey:
        """The queue it waits in, as far as its spec decides that."""
        own_near = tuple(term.jobs.holds(self.selector_labels) for term in self.near)
        is_alone = self.kind is _SYSTEM or any(rule.weight is None for rule in self.spread)
        return QueueKey(
            self.shape,
            self.rules,
            Owner(self.namespace, self.user),
            self.expect_ms,
            own_near,
            alone=self.id if is_alone else "",
            rejects=self.when_unschedulable is Unschedulable.REJECT,
        )

    @property
    def placement_inputs(self) -> tuple[Shape, AffinityRules, str | None]:
        """What decides which nodes may run its tasks, and what they reserve there."""
        return self.shape, self.rules, self.workdir

    @lazy
    def refusal_key(self) -> QueueKey:
        """What a node refuses when it refuses a task: its line and its working directory."""
        return (
            self.queue_key
            if self.workdir is None
            else msgspec.structs.replace(self.queue_key, workdir=self.workdir)
        )

    @lazy
    def queue_rank(self) -> QueueRank:
        """Whose turn: the higher priority, then the earlier deadline, then the earlier submitted."""
        return (-self.priority, self.deadline_at_ms or _NO_DEADLINE, int(self.id))

    @property
    def evictable(self) -> bool:
        """May have to give way to a higher priority; what is started once, ever, may not."""
        return self.preemptible and self.run is not RunMode.AT_MOST_ONCE

    @property
    def movable(self) -> bool:
        """May be stopped on one node and started on another."""
        return self.kind is not JobKind.SYSTEM and self.run is not RunMode.AT_MOST_ONCE

    @property
    def expect_ms(self) -> int | None:
        """How long a task of it runs at most, as far as anybody said."""
        seconds = self.expect_seconds or self.timeout_seconds
        return None if seconds is None else round(seconds * 1000)

    @lazy
    def selector_labels(self) -> dict[str, str]:
        """The labels by which other jobs choose it as a neighbour."""
        return {**self.labels, "job": self.name}

    def block_size(self, block: int) -> int:
        if self.kind is _SYSTEM:  # its tasks come one by one: there is a place for each from the start
            return BLOCK_TASKS
        return min(BLOCK_TASKS, self.count - block * BLOCK_TASKS)


def resized(spec: JobSpec, tasks: int) -> JobSpec:
    """The same job with so many tasks. Those that were are never forgotten: numbers of attempts go on."""
    kept = tasks if spec.kept is not None or tasks < spec.count else None
    return msgspec.structs.replace(spec, count=max(spec.count, tasks), kept=kept)


def assigned_to(spec: JobSpec, cluster: str) -> JobSpec:
    """The same job, assigned to that cluster."""
    return spec if spec.home == cluster else msgspec.structs.replace(spec, home=cluster)


def with_observed_needs(spec: JobSpec) -> JobSpec:
    """The same job, asking for what it is likely to use."""
    return msgspec.structs.replace(spec, needs=spec.needs | spec.observed) if spec.observed else spec


def asking_only(
    spec: JobSpec, *, where: Constraint | None = None, needs: dict[str, int] | None = None
) -> JobSpec:
    """The same job, asking for one thing only of a node that takes it: a label, an amount, or nothing."""
    return msgspec.structs.replace(
        spec,
        where=() if where is None else (where,),
        needs=needs or {},
        observed={},
        container=None,
        sandbox=None,
        run=RunMode.AT_LEAST_ONCE,
        near=(),
    )


def with_pack_policy(spec: JobSpec) -> JobSpec:
    """The same job, which wants to be where it is fullest."""
    return msgspec.structs.replace(spec, policy=Policy.PACK)


class SentSignal(msgspec.Struct, frozen=True):
    """A signal for attempts that run. Numbered, so that none is delivered twice."""

    n: int
    signal: int
    attempts: dict[int, int]  # index -> number
    key: str = ""  # of the request: one that is repeated sends no second signal


class JobIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user wishes since: that it or tasks of it end, pause, begin again. Written by apiserver."""

    id: JobId
    cancel: bool = False
    reason: str | None = None
    at_ms: int = 0
    restart: dict[int, int] = {}  # index -> the attempt that is to be stopped, and tried again
    killed: dict[int, int] = {}  # the same without grace, of what is kept running
    moves: dict[int, MoveOrder] = {}  # index -> where its next attempt may go
    release: dict[int, int] = {}  # index -> the try that is held, and may be placed
    kill: bool = False  # canceled without grace
    cancel_tasks: dict[int, bool] = {}  # index -> whether without grace
    paused: bool = False  # nothing of it starts
    halted: bool = False  # paused, and what runs is stopped, to be tried again after that
    sent: tuple[SentSignal, ...] = ()  # signals, the newest last
    replace: int = 0  # attempts of an older version of the spec than this are replaced
    max_parallel: int = 1  # so many of them at one time
    spare: tuple[tuple[int, int], ...] = ()  # but not those from .. to: they are as good as the newest
    back_from: int = 0  # the version that failed and is taken back by this
    back_why: str | None = None
    requests: tuple[str, ...] = ()  # keys of requests that are part of this, the newest last

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/wish")

    def replaces(self, version: int) -> bool:
        """What runs by this version of the spec is to be replaced."""
        return version < self.replace and not any(first <= version <= last for first, last in self.spare)


class JobCluster(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which cluster a job is for. Written by clusters."""

    id: JobId
    cluster: str
    moved: bool = False  # it was assigned to another before
    failed: str | None = None  # that cluster has, and it cannot go to another: it ends, with this reason

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
    wanted_at_ms: int = 0  # cluster time since when its tasks are wanted, while it is active
    ended_ms: int | None = None  # in cluster time: what its expiry is counted from

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/status")

    @property
    def ended(self) -> bool:
        return self.state in JOB_ENDS


class SchedulerVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a job cannot run as wished: it does not wait, or is too late. Written by scheduler."""

    id: JobId
    reason: str
    late: bool = False  # its deadline can no longer be met, or it waited too long
    ends: bool = False  # what of it runs is stopped; else it may end by itself

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/verdict")


class Unplaceable(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why no node can take tasks of a job, as it was last found and told. Written by scheduler."""

    id: JobId
    cause: UnplaceableCause = UnplaceableCause.NONE
    reason: str = ""
    begun: int = 0  # tasks that a node had accepted by then: with one more the cause is gone

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/unplaceable")


class SubmitKey(msgspec.Struct, frozen=True):
    """An idempotency key and the job it made. Written by apiserver, in the spec's transaction."""

    namespace: str
    name: str
    job: JobId
    digest: str

    @property
    def key(self) -> Key:
        return Key(f"submit/{self.namespace}/{self.name}")


class JobTombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    """That there was such a job, for as long as its submit key is kept. Written by controllers."""

    id: JobId
    at_ms: int  # cluster time
    wall_ms: int
    state: str  # in which it ended, or `deleted`
    namespace: str = ""

    @property
    def key(self) -> Key:
        return Key(f"gone/{self.id}")


class Counters(msgspec.Struct, frozen=True):
    """The highest numbers given out. Written by apiserver; numbers are never given out twice."""

    jobs: int = 0
    nodes: int = 0

    @property
    def key(self) -> Key:
        return Key("meta/counters")


NO_CLUSTER = ""  # in place of a cluster's name: jobs that have none yet


class JobGroup(NamedTuple):
    """Jobs that the same clusters can serve, and that are bound to theirs alike."""

    shape: Shape
    cluster: str | None  # that they name; None: any
    moves: bool  # they may change over to another cluster while they wait
    near: tuple[AffinityTerm, ...] = ()
    namespace: str = ""  # of which jobs are meant by `near`


def group_of(spec: JobSpec) -> JobGroup:
    if not spec.near:
        return JobGroup(spec.shape, spec.cluster, spec.move_pending)
    return JobGroup(spec.shape, spec.cluster, spec.move_pending, spec.near, spec.namespace)
