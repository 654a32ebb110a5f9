"""Records of a job: spec and intent (desired state), and status, verdict and cluster (what became of it)."""

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
    """An order to run a task on another node. Part of a JobIntent."""

    attempt: int  # the attempt that is stopped
    tries: int  # the desired attempt number that this attempt was placed for
    source: NodeId  # the node that the task leaves
    target: NodeId | None  # the node that it goes to; None: any other than `source`
    at_ms: int  # cluster time of the order
    leaves: bool = True  # False: a task of a gang that is stopped because another one leaves its node


class NeedOrigin(StrEnum):
    """Where the amount of a resource that a job requests comes from."""

    EXPLICIT = "explicit"  # the spec
    NAMESPACE = "namespace"  # the defaults of its namespace
    OBSERVED = "observed"  # the usage of the last job of its name
    DEFAULT = "default"  # the defaults of the server


QueueRank = tuple[int, int, int]  # sort key in a queue, the smallest first; the last part is the job's number


class QueueChange(NamedTuple):
    """A job joined or left a queue, or may start now although it could not before."""

    queue: QueueKey
    joined: QueueRank | None = None
    is_better: bool = False  # a job of it may start now although no capacity was freed


_NO_DEADLINE = 2**62


class JobKind(StrEnum):
    """The kind of a job, which decides when it has ended."""

    BATCH = "batch"  # ends when all its tasks have ended
    SERVICE = "service"  # kept running until it is canceled
    SYSTEM = "system"  # one task on every node that fits


_SYSTEM = JobKind.SYSTEM  # enum members are slow to look up, and this one is compared at every change


class Recovery(StrEnum):
    """The one party that decides about a task whose node is lost."""

    SCHEDULER = "scheduler"
    CONTROLLER = "controller"
    CANCEL = "cancel"
    NONE = "none"


class Unschedulable(StrEnum):
    """What happens to a job whose tasks fit on no node now."""

    QUEUE = "queue"
    REJECT = "reject"
    SCALE = "scale"  # it waits, and its cluster may be scaled up for it


class UnplaceableCause(StrEnum):
    """Why no node can take tasks of a job."""

    NONE = ""  # some node can, or may be able to
    INFEASIBLE = "never"  # no node could run it, even if the node were empty
    REFUSED = "refused"  # every node that could run it has refused it
    NO_FREE_NODE = "waits"  # no node has the resources free; reported only for jobs that scale up


class JobSpec(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """What a user submitted. Written by apiserver: once, and again at each update, with the next version."""

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
    noise: str | None = None  # the kind of interference it causes and suffers from
    preemptible: bool = True  # may be preempted by jobs of higher priority
    move_pending: bool = True  # while none of its tasks runs, it may be assigned to another cluster
    evict_at_most: int | None = None  # how many of its tasks may be preempted at one time
    expect_seconds: float | None = None  # expected run time of a task, given by the user
    deadline_at_ms: int | None = None  # wall clock by which it has to have ended
    log_bytes: int | None = None  # output retained per stream of an attempt; None: the node's default
    limits: dict[str, int] = {}  # hard limits: memory in bytes, cpu in thousandths, pids
    steps: tuple[Step, ...] = ()  # run in order instead of a command
    files: dict[str, bytes] = {}  # by path, written into its working directory
    container: ContainerSpec | None = None  # none: plain processes
    kind: JobKind = JobKind.BATCH
    queue_timeout_seconds: float | None = None  # how long a task may wait to be placed
    retry: Retry = PLAIN  # which of its failures are retried, and after which backoff
    version: int = 1  # incremented by each update
    keep_seconds: float | None = None  # retention after its end; None: the server's default
    after: tuple[Dependency, ...] = ()  # jobs that have to end first; their numbers are smaller than its own
    stop_signal: int = SIGTERM  # sent first when a task is stopped
    restart: RestartPolicy = RestartPolicy()  # of a service
    check: HealthCheck | None = None  # of a service; None: running is healthy
    rollout: RolloutPolicy = RolloutPolicy()  # of a service
    sandbox: SandboxSpec | None = None
    lease_seconds: float | None = None  # of one_at_a_time; None: the default
    lease_margin_seconds: float | None = None
    rerun_of: str = ""  # the job that it is a rerun of
    carried: tuple[tuple[int, int], ...] = ()  # ranges of tasks that succeeded there, and are not run again
    controller: str = ""  # with Recovery.CONTROLLER: the subscriber, of the same user
    when_no_controller: WhenControllerAbsent = WhenControllerAbsent.WAIT
    controller_wait_seconds: float = CONTROLLER_WAIT_SECONDS  # absence of the controller until that applies
    cluster: str | None = None  # the only cluster it may run in; None: any that can serve it
    results: bool | Reporter = False  # True: its tasks get a token by which they report results themselves
    home: str = DEFAULT  # the cluster it is assigned to: a copy of JobCluster, which is authoritative
    # The number of tasks that the user wants, if it was ever lowered; None: all `count` tasks.
    desired_count: int | None = msgspec.field(default=None, name="kept")
    origins: dict[str, NeedOrigin] = {}  # where each amount of `needs` comes from; empty: unknown
    observed: dict[str, int] = {}  # usage of the last job of its name beyond `needs`; to choose a cluster

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/spec")

    @property
    def series(self) -> str:
        """The name under which observed usage is collected: of a cron, whose runs all have other names."""
        return self.labels.get("cron") or self.name

    @property
    def recovery_controller(self) -> str | None:
        """The subscriber that alone decides about lost tasks."""
        return f"{self.user}:{self.controller}" if self.recovery is Recovery.CONTROLLER else None

    @property
    def is_service(self) -> bool:
        """Whether its tasks are kept running: one that ends is started again."""
        return self.kind is JobKind.SERVICE

    @property
    def size(self) -> int:
        """The desired number of tasks; `count` is the highest number there has ever been."""
        return self.count if self.desired_count is None else self.desired_count

    def is_scaled_down(self, index: int) -> bool:
        """Whether this task exists and is beyond the desired count."""
        return self.desired_count is not None and index >= self.desired_count

    @property
    def blocks(self) -> int:
        return (self.count + BLOCK_TASKS - 1) // BLOCK_TASKS

    @lazy
    def conditions(self) -> tuple[Constraint, ...]:
        """Constraints on node labels: those of the spec, and those implied by its other fields."""
        if self.container is None and self.sandbox is None and self.run is not RunMode.ONE_AT_A_TIME:
            return self.where
        implied = ((self.container, RUNTIME), (self.sandbox, SANDBOX), (self.lease_ms, LEASES))
        return (*self.where, *(condition for field, condition in implied if field is not None))

    @lazy
    def tolerated(self) -> tuple[str, ...]:
        """Taints that it tolerates. A spec that names its node also tolerates that the node is dialled."""
        names_node = any(condition.label == "node" and condition.op is Op.EQUAL for condition in self.where)
        return (*self.tolerate, DIALLED) if names_node else self.tolerate

    @lazy
    def lease_ms(self) -> int | None:
        """How long an attempt may run without a renewal by the control plane; None: without limit."""
        if self.run is not RunMode.ONE_AT_A_TIME:
            return None
        return LEASE_MS if self.lease_seconds is None else round(self.lease_seconds * 1000)

    @lazy
    def lease_margin_ms(self) -> int:
        """How long after the end of its lease an attempt is not replaced: the bound on clock drift."""
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
        """The queue class it waits in, as far as the spec determines it."""
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
        """The fields that decide which nodes may run its tasks, and what they reserve there."""
        return self.shape, self.rules, self.workdir

    @lazy
    def refusal_key(self) -> QueueKey:
        """What a refusal by a node is about: the queue class and the working directory."""
        return (
            self.queue_key
            if self.workdir is None
            else msgspec.structs.replace(self.queue_key, workdir=self.workdir)
        )

    @lazy
    def queue_rank(self) -> QueueRank:
        """Higher priority first, then the earlier deadline, then the lower job number."""
        return (-self.priority, self.deadline_at_ms or _NO_DEADLINE, int(self.id))

    @property
    def evictable(self) -> bool:
        """Whether its tasks may be preempted; at_most_once tasks may not, since they never start again."""
        return self.preemptible and self.run is not RunMode.AT_MOST_ONCE

    @property
    def movable(self) -> bool:
        """Whether a task may be stopped on one node and started on another."""
        return self.kind is not JobKind.SYSTEM and self.run is not RunMode.AT_MOST_ONCE

    @property
    def expect_ms(self) -> int | None:
        """The expected run time of a task, or else its time limit; None: neither is given."""
        seconds = self.expect_seconds or self.timeout_seconds
        return None if seconds is None else round(seconds * 1000)

    @lazy
    def selector_labels(self) -> dict[str, str]:
        """The labels that affinity rules of other jobs select it by."""
        return {**self.labels, "job": self.name}

    def block_size(self, block: int) -> int:
        if self.kind is _SYSTEM:  # its tasks are added one by one: blocks have their full size from the start
            return BLOCK_TASKS
        return min(BLOCK_TASKS, self.count - block * BLOCK_TASKS)


def resized(spec: JobSpec, tasks: int) -> JobSpec:
    """The job scaled to this number of tasks.

    `count` never shrinks: attempt numbers of a task that is scaled down and up again must continue.
    """
    desired = tasks if spec.desired_count is not None or tasks < spec.count else None
    return msgspec.structs.replace(spec, count=max(spec.count, tasks), desired_count=desired)


def assigned_to(spec: JobSpec, cluster: str) -> JobSpec:
    """The job, assigned to that cluster."""
    return spec if spec.home == cluster else msgspec.structs.replace(spec, home=cluster)


def with_observed_needs(spec: JobSpec) -> JobSpec:
    """The job with its needs raised to the observed usage."""
    return msgspec.structs.replace(spec, needs=spec.needs | spec.observed) if spec.observed else spec


def asking_only(
    spec: JobSpec, *, where: Constraint | None = None, needs: dict[str, int] | None = None
) -> JobSpec:
    """The job with a single requirement on its node: a label, an amount, or none."""
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
    """The job with the bin-packing policy."""
    return msgspec.structs.replace(spec, policy=Policy.PACK)


class SentSignal(msgspec.Struct, frozen=True):
    """A signal for running attempts. Its number makes delivery idempotent."""

    n: int
    signal: int
    attempts: dict[int, int]  # index -> attempt number
    key: str = ""  # idempotency key of the request: a repeated request sends no second signal


class JobIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What users requested since the submit: cancel, pause, restart, move, signal. Written by apiserver.

    Requests about single tasks name the attempt that they are about, so a request that is repeated or applied
    late does not affect an attempt which started since.
    """

    id: JobId
    cancel: bool = False
    reason: str | None = None
    at_ms: int = 0
    restart: dict[int, int] = {}  # index -> the attempt to stop and retry
    killed: dict[int, int] = {}  # the same without a grace period, of services
    moves: dict[int, MoveOrder] = {}  # index -> where its next attempt may go
    release: dict[int, int] = {}  # index -> the held attempt number that may be placed
    kill: bool = False  # canceled without a grace period
    cancel_tasks: dict[int, bool] = {}  # index -> True: without a grace period
    paused: bool = False  # no task of it starts
    halted: bool = False  # paused, and running attempts are stopped, to be retried after a resume
    sent: tuple[SentSignal, ...] = ()  # signals, the newest last
    replace: int = 0  # attempts of versions before this one are replaced
    max_parallel: int = 1  # how many of them at one time
    spare: tuple[tuple[int, int], ...] = ()  # ranges of versions that need no replacement
    back_from: int = 0  # the failed version that this rolls back
    back_why: str | None = None
    requests: tuple[str, ...] = ()  # idempotency keys of requests applied so far, the newest last

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/wish")

    def replaces(self, version: int) -> bool:
        """Whether attempts of this version of the spec are to be replaced."""
        return version < self.replace and not any(first <= version <= last for first, last in self.spare)


class JobCluster(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cluster that a job is assigned to. Written by clusters."""

    id: JobId
    cluster: str
    moved: bool = False  # it was assigned to another cluster before
    failed: str | None = None  # the cluster failed and no other can serve the job: it ends for this reason

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/cluster")


class JobStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a job and how it ended. Written by controllers."""

    id: JobId
    state: JobState
    reason: str | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    wanted_at_ms: int = 0  # cluster time since which its tasks are desired, while it is active
    ended_ms: int | None = None  # cluster time from which its retention counts

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/status")

    @property
    def ended(self) -> bool:
        return self.state in JOB_ENDS


class SchedulerVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The finding that a job cannot run: infeasible and not waiting, or too late. Written by scheduler."""

    id: JobId
    reason: str
    late: bool = False  # its deadline can no longer be met, or its queue timeout has passed
    ends: bool = False  # running attempts are stopped; else they may end by themselves

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/verdict")


class Unplaceable(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why no node can take tasks of a job, as last reported in an event. Written by scheduler."""

    id: JobId
    cause: UnplaceableCause = UnplaceableCause.NONE
    reason: str = ""
    begun: int = 0  # tasks that nodes had accepted by then: one more and the cause no longer holds

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/unplaceable")


class SubmitKey(msgspec.Struct, frozen=True):
    """An idempotency key and the job it created. Written by apiserver, in the transaction of the spec."""

    namespace: str
    name: str
    job: JobId
    digest: str

    @property
    def key(self) -> Key:
        return Key(f"submit/{self.namespace}/{self.name}")


class JobTombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A deleted job, for as long as its idempotency key is retained. Written by controllers."""

    id: JobId
    at_ms: int  # cluster time
    wall_ms: int
    state: str  # its last state, or `deleted`
    namespace: str = ""

    @property
    def key(self) -> Key:
        return Key(f"gone/{self.id}")


class Counters(msgspec.Struct, frozen=True):
    """The highest numbers given to jobs and nodes; none is ever reused. Written by apiserver."""

    jobs: int = 0
    nodes: int = 0

    @property
    def key(self) -> Key:
        return Key("meta/counters")


NO_CLUSTER = ""  # in place of a cluster's name, for jobs that have none yet


class JobGroup(NamedTuple):
    """The properties of a job that decide which clusters can serve it, as a key of equal jobs."""

    shape: Shape
    cluster: str | None  # the one they name; None: any
    moves: bool  # they may be assigned to another cluster while they wait
    near: tuple[AffinityTerm, ...] = ()
    namespace: str = ""  # whose jobs `near` selects; empty without `near`


def group_of(spec: JobSpec) -> JobGroup:
    if not spec.near:
        return JobGroup(spec.shape, spec.cluster, spec.move_pending)
    return JobGroup(spec.shape, spec.cluster, spec.move_pending, spec.near, spec.namespace)
