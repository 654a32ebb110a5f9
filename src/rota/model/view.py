"""View: the cluster as deciding code sees it, read-only. The mirror implements these protocols."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Protocol

from rota.model.adoption import JobAdoption, Restored
from rota.model.affinity import AffinityIndex
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.columns import ints
from rota.model.cron import CronRecord, CronStatus
from rota.model.ended_jobs import EndedJobs
from rota.model.ids import JobId, Key, NodeId
from rota.model.job import (
    Counters,
    JobCluster,
    JobGroup,
    JobIntent,
    JobSpec,
    JobStatus,
    MoveOrder,
    QueueChange,
    QueueRank,
    SchedulerVerdict,
    SubmitKey,
    Unplaceable,
)
from rota.model.lifecycle import JobState, NodeState
from rota.model.limits import BLOCK_TASKS
from rota.model.namespace import NamespaceRecord, UsageAccounts
from rota.model.node import Connection, NodeIntent, NodeLoad, NodeSpec, NodeStatus
from rota.model.node_table import NodeTable
from rota.model.recovery import RecoveryAnswers
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout
from rota.model.shape import QueueKey
from rota.model.structures import ChangeLog
from rota.model.subscriber import Subscriber, SubscriberPresence
from rota.model.task import PinBlock, TaskBlock


class TaskCounts(Protocol):
    """Numbers of a job's tasks by state."""

    @property
    def ended(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def stopping(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def unresolved(self) -> int: ...
    def as_dict(self) -> dict[str, int]: ...


class JobView(Protocol):
    @property
    def spec(self) -> JobSpec: ...
    @property
    def intent(self) -> JobIntent | None: ...
    @property
    def cluster(self) -> JobCluster | None: ...
    @property
    def status(self) -> JobStatus | None: ...
    @property
    def verdict(self) -> SchedulerVerdict | None: ...
    @property
    def unplaceable(self) -> Unplaceable | None: ...
    @property
    def answers(self) -> RecoveryAnswers | None: ...
    @property
    def results(self) -> Mapping[tuple[int, int], ResultRecord]:
        """By index and attempt."""

    @property
    def results_bytes(self) -> int: ...
    @property
    def previous_version(self) -> JobPreviousVersion | None: ...
    @property
    def rollout(self) -> JobRollout | None: ...
    @property
    def adoption(self) -> JobAdoption | None:
        """None: it was not adopted, but submitted to this server or loaded from its store."""

    @property
    def tasks(self) -> Mapping[int, TaskBlock]: ...
    @property
    def attempts(self) -> Mapping[int, AttemptBlock]: ...
    @property
    def statuses(self) -> Mapping[int, StatusBlock]: ...
    @property
    def phases(self) -> Mapping[int, bytes]:
        """By block, a Phase per task; a block without an entry is all pending."""

    @property
    def task_by_node(self) -> Mapping[NodeId, int]:
        """Of a system job: the task of each node, in the order of the tasks."""

    @property
    def pins(self) -> Mapping[int, PinBlock]: ...
    @property
    def task_counts(self) -> TaskCounts: ...
    @property
    def started_at_ms(self) -> int | None:
        """The earliest start of any of its attempts."""

    @property
    def runs_briefly(self) -> bool:
        """Whether its tasks are known to be short enough for lookahead on a node."""

    @property
    def run_us(self) -> float | None:
        """Observed run time of its tasks, a moving average."""

    @property
    def live_by_node(self) -> Mapping[NodeId, int]:
        """Live attempts by node."""

    @property
    def queue(self) -> QueueKey | None:
        """The queue it waits in; None: no task of it may be placed now."""

    @property
    def moving(self) -> Mapping[int, MoveOrder]:
        """By index: move orders of tasks that have not started on another node yet."""

    def move_waits_end_ms(self, now_ms: int) -> list[int]:
        """Ends of the move windows of all pending tasks that are between two nodes, in cluster time."""

    def ready(self, now_ms: int, most: int) -> list[int]:
        """Indices of pending tasks that may be placed now, lowest first, at most `most`."""


class NodeView(Protocol):
    @property
    def spec(self) -> NodeSpec: ...
    @property
    def intent(self) -> NodeIntent | None: ...
    @property
    def status(self) -> NodeStatus | None: ...
    @property
    def revoked(self) -> bool:
        """Whether an operator has revoked its certificate."""

    @property
    def connection(self) -> Connection: ...
    @property
    def last_seen_at_ms(self) -> int: ...
    @property
    def disconnect_reason(self) -> str | None:
        """Why it closed its last connection, as it reported; None: it gave no reason."""

    @property
    def left_at(self) -> tuple[int, int] | None:
        """Revision and index of the event of its leave, if this process has committed it."""

    @property
    def load(self) -> NodeLoad | None: ...
    @property
    def assigned(self) -> Mapping[tuple[JobId, int], int]:
        """Live attempts on it: (job, index) -> attempt number."""

    @property
    def is_draining(self) -> bool:
        """Whether it takes no new tasks because an operator, the node itself or its cluster requested so."""


class View(Protocol):
    @property
    def read_at_ms(self) -> int:
        """Cluster time at which the state was loaded: observations before that belong to another process."""

    @property
    def restored(self) -> Restored | None:
        """The record of a restore, if the store was ever restored from a backup."""

    @property
    def disk_low(self) -> bool:
        """Whether disk space is low: only ends of running work may be written, no new work."""

    @property
    def jobs(self) -> Mapping[JobId, JobView]: ...
    @property
    def unloadable(self) -> Container[JobId]:
        """Stored jobs that could not be loaded: not in `jobs`, but their ids are taken."""

    @property
    def nodes(self) -> Mapping[NodeId, NodeView]: ...
    @property
    def granted_only_labels(self) -> frozenset[str]:
        """Keys of labels that have an effect only on nodes which were granted them."""

    @property
    def leased(self) -> Mapping[JobId, None]:
        """Unfinished jobs whose attempts run under leases."""

    @property
    def leased_on(self) -> Mapping[NodeId, Mapping[JobId, None]]:
        """By node, those of them with live attempts there; a node without any has no entry."""

    @property
    def node_table(self) -> NodeTable: ...
    @property
    def usage(self) -> UsageAccounts: ...
    @property
    def affinity(self) -> AffinityIndex: ...
    @property
    def namespaces(self) -> Mapping[str, NamespaceRecord]: ...
    @property
    def presence(self) -> SubscriberPresence: ...
    @property
    def subscribers(self) -> Mapping[str, Subscriber]: ...
    @property
    def crons(self) -> Mapping[str, CronRecord]: ...
    @property
    def cron_statuses(self) -> Mapping[str, CronStatus]: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def clusters(self) -> Mapping[str, ClusterRecord]: ...
    @property
    def cluster_intents(self) -> Mapping[str, ClusterIntent]: ...
    @property
    def machines(self) -> Mapping[str, Machine]: ...
    @property
    def ended_jobs(self) -> EndedJobs: ...
    @property
    def system_jobs(self) -> Iterable[JobId]:
        """Active system jobs."""

    @property
    def moving(self) -> Mapping[JobId, None]:
        """Jobs with tasks that are ordered to another node and have not started there yet."""

    @property
    def unassigned(self) -> Iterable[JobId]:
        """Jobs without a cluster."""

    @property
    def jobs_by_cluster(self) -> Mapping[str, Mapping[JobGroup, Mapping[JobId, None]]]:
        """Unfinished jobs by cluster, NO_CLUSTER for those without one; empty groups have no entry."""

    @property
    def unfinished(self) -> int:
        """Number of jobs that have not ended."""

    def submitted(self, namespace: str, name: str) -> SubmitKey | None: ...
    def pending_queues(self) -> Iterable[tuple[QueueKey, Sequence[QueueRank]]]:
        """The queues of jobs with tasks that may be placed now, each job as its rank, the first one first."""

    def nodes_in(self, cluster: str) -> Mapping[NodeState, int]:
        """Numbers of nodes of a cluster by state."""

    def pending_jobs_in(self, cluster: str) -> int:
        """Number of queued jobs that are assigned to this cluster."""

    def pending_queue(self, queue: QueueKey) -> Sequence[QueueRank]:
        """The ranks of the jobs in one queue."""

    @property
    def queue_changes(self) -> ChangeLog[QueueChange]:
        """Queues that a job joined or left, or in which a job may start that could not before."""

    def next_resume_ms(self) -> int | None:
        """Cluster time at which the next job whose pending tasks are all in backoff is queued again."""

    def dependents(self, job: JobId) -> Sequence[JobId]:
        """Jobs that have not started and wait for this one to end."""

    def refused_by(self, refusal_key: QueueKey) -> Mapping[NodeId, tuple[int, str]]:
        """Nodes that recently refused such tasks: the cluster time until which it counts, and the reason."""


def state_of(view: View, job_id: JobId) -> JobState | None:
    """The state of a job; None: it does not exist, or no longer."""
    job = view.jobs.get(job_id)
    if job is None:
        return None
    return JobState.SUBMITTED if job.status is None else job.status.state


def is_placed(job: JobView, index: int) -> bool:
    """Whether the task ever had an attempt that is recorded."""
    block, position = divmod(index, BLOCK_TASKS)
    attempts = job.attempts.get(block)
    return attempts is not None and ints(attempts, "number")[position] > 0


def nodes_being_terminated(view: View, cluster: str) -> tuple[NodeId, ...]:
    """Nodes of a cluster whose machines have a termination notice: their tasks will be moved."""
    return tuple(
        name
        for name, node in view.nodes.items()
        if node.spec.cluster == cluster and node.status is not None and node.status.leaves_by_ms is not None
    )


def worker_node(view: View, worker_id: str) -> NodeView | None:
    """The node that a dialled worker is registered as."""
    for node in view.nodes.values():
        if worker_id and node.spec.dialled is not None and node.spec.dialled.worker_id == worker_id:
            return node
    return None


def keys_of_node(node: NodeId) -> tuple[Key, ...]:
    """The keys of all records of a node."""
    return tuple(Key(f"node/{node}/{part}") for part in ("spec", "wish", "status"))


def keys_of(job: JobView) -> list[Key]:
    """The keys of all records of a job except its submit key."""
    name = job.spec.id
    # Every record of a job has to be named here: one that is left behind would be
    # attached to nothing after a reload.
    decided = ("cluster", "status", "verdict", "unplaceable")
    parts = ("spec", "wish", *decided, "answers", "former", "rollout", "adoption")
    blocks = {"pin": job.pins, "task": job.tasks, "attempt": job.attempts, "status": job.statuses}
    keys = [f"job/{name}/{part}" for part in parts]
    keys += [f"{kind}/{name}/{block}" for kind, known in blocks.items() for block in known]
    return [*map(Key, keys), *(result.key for result in job.results.values())]
