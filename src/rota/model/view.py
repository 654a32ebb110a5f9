"""View: what deciding code may see of the cluster, read-only."""

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
    """How many tasks of a job are in which state; `pending` are all the others."""

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
        """None: it was submitted to this server, or to one that kept its records."""

    @property
    def tasks(self) -> Mapping[int, TaskBlock]: ...
    @property
    def attempts(self) -> Mapping[int, AttemptBlock]: ...
    @property
    def statuses(self) -> Mapping[int, StatusBlock]: ...
    @property
    def phases(self) -> Mapping[int, bytes]:
        """Per block a Phase per task; a block without an entry is all pending."""

    @property
    def task_by_node(self) -> Mapping[NodeId, int]:
        """Of a system job: which task each node has, in the order of the tasks."""

    @property
    def pins(self) -> Mapping[int, PinBlock]: ...
    @property
    def task_counts(self) -> TaskCounts: ...
    @property
    def started_at_ms(self) -> int | None:
        """The earliest start of any of its attempts."""

    @property
    def runs_briefly(self) -> bool:
        """Whether its tasks are known to run so briefly that some may wait on a node for the next slot."""

    @property
    def run_us(self) -> float | None:
        """Observed run time of its tasks, a moving average."""

    @property
    def live_by_node(self) -> Mapping[NodeId, int]:
        """Live attempts by node."""

    @property
    def queue(self) -> QueueKey | None:
        """The line it waits in; None: no task of it may be placed now."""

    @property
    def moving(self) -> Mapping[int, MoveOrder]:
        """By index: orders to move tasks that do not run on another node yet."""

    def move_waits_end_ms(self, now_ms: int) -> list[int]:
        """For each pending task that is still between two nodes: the cluster time at which that wait ends."""

    def ready(self, now_ms: int, most: int) -> list[int]:
        """Indices of pending tasks that may be placed now, lowest first, at most so many."""


class NodeView(Protocol):
    @property
    def spec(self) -> NodeSpec: ...
    @property
    def intent(self) -> NodeIntent | None: ...
    @property
    def status(self) -> NodeStatus | None: ...
    @property
    def revoked(self) -> bool:
        """Its certificate opens nothing any more, by an operator's word."""

    @property
    def connection(self) -> Connection: ...
    @property
    def last_seen_at_ms(self) -> int: ...
    @property
    def disconnect_reason(self) -> str | None:
        """Why it closed its connection, as it said itself; None: it said nothing."""

    @property
    def left_at(self) -> tuple[int, int] | None:
        """Revision and index of the event that told of its leave, if this process has committed it."""

    @property
    def load(self) -> NodeLoad | None: ...
    @property
    def assigned(self) -> Mapping[tuple[JobId, int], int]:
        """Live attempts on it: (job, index) -> attempt number."""

    @property
    def is_draining(self) -> bool:
        """It takes nothing new: an operator wishes that, the node itself, or its cluster wants it no more."""


class View(Protocol):
    @property
    def read_at_ms(self) -> int:
        """When all this was read from disk: what happened before, somebody else may have seen."""

    @property
    def restored(self) -> Restored | None:
        """That it was read from a backup, once."""

    @property
    def disk_low(self) -> bool:
        """Whether the store has no room but for how that ends which runs already."""

    @property
    def jobs(self) -> Mapping[JobId, JobView]: ...
    @property
    def unloadable(self) -> Container[JobId]:
        """Jobs on disk that could not be loaded: not among `jobs`, but not unknown either."""

    @property
    def nodes(self) -> Mapping[NodeId, NodeView]: ...
    @property
    def granted_only_labels(self) -> frozenset[str]:
        """Keys of labels that count only where a node was granted them."""

    @property
    def leased(self) -> Mapping[JobId, None]:
        """Jobs that have not ended and whose attempts run under leases."""

    @property
    def leased_on(self) -> Mapping[NodeId, Mapping[JobId, None]]:
        """Of these, the ones with live attempts on a node; a node without any has no entry."""

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
        """Active jobs with a task on every node."""

    @property
    def moving(self) -> Mapping[JobId, None]:
        """Jobs with tasks that are ordered to run on another node, and do not run there yet."""

    @property
    def unassigned(self) -> Iterable[JobId]:
        """Jobs that have no cluster yet."""

    @property
    def jobs_by_cluster(self) -> Mapping[str, Mapping[JobGroup, Mapping[JobId, None]]]:
        """Unfinished jobs by their cluster, UNASSIGNED without one. What is empty has no entry."""

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""

    def submitted(self, namespace: str, name: str) -> SubmitKey | None: ...
    def pending_queues(self) -> Iterable[tuple[QueueKey, Sequence[QueueRank]]]:
        """The lines of jobs with tasks that may be placed now, each job as its turn, first in turn first."""

    def nodes_in(self, cluster: str) -> Mapping[NodeState, int]:
        """How many nodes of a cluster are in each state."""

    def pending_jobs_in(self, cluster: str) -> int:
        """How many jobs are in lines for nodes of this cluster."""

    def pending_queue(self, line: QueueKey) -> Sequence[QueueRank]:
        """The same of one line."""

    @property
    def queue_changes(self) -> ChangeLog[QueueChange]:
        """Lines that a job joined or left, or in which its prospects changed."""

    def next_resume_ms(self) -> int | None:
        """When the next job all of whose tasks pause after a failure is in a line again."""

    def dependents(self, job: JobId) -> Sequence[JobId]:
        """Jobs that have not begun and wait for this one to end."""

    def refused_by(self, errand: QueueKey) -> Mapping[NodeId, tuple[int, str]]:
        """Nodes that lately refused such tasks: cluster time until which it counts, and the reason."""


def state_of(view: View, job_id: JobId) -> JobState | None:
    """None: there is no such job, any more."""
    job = view.jobs.get(job_id)
    if job is None:
        return None
    return JobState.SUBMITTED if job.status is None else job.status.state


def is_placed(job: JobView, index: int) -> bool:
    """Whether the task ever had an attempt that is known here."""
    block, position = divmod(index, BLOCK_TASKS)
    attempts = job.attempts.get(block)
    return attempts is not None and ints(attempts, "number")[position] > 0


def nodes_being_terminated(view: View, cluster: str) -> tuple[NodeId, ...]:
    """Its nodes whose machines will be: they take nothing new, and what runs there will move."""
    return tuple(
        name
        for name, node in view.nodes.items()
        if node.spec.cluster == cluster and node.status is not None and node.status.leaves_by_ms is not None
    )


def worker_node(view: View, worker_id: str) -> NodeView | None:
    """The node that a worker which we dial is registered as."""
    for node in view.nodes.values():
        if worker_id and node.spec.dialled is not None and node.spec.dialled.worker_id == worker_id:
            return node
    return None


def keys_of_node(node: NodeId) -> tuple[Key, ...]:
    """Of all its records."""
    return tuple(Key(f"node/{node}/{part}") for part in ("spec", "wish", "status"))


def keys_of(job: JobView) -> list[Key]:
    """Of all its records but its submit key."""
    name = job.spec.id
    decided = ("cluster", "status", "verdict", "unplaceable")
    parts = ("spec", "wish", *decided, "answers", "former", "rollout", "adoption")
    blocks = {"pin": job.pins, "task": job.tasks, "attempt": job.attempts, "status": job.statuses}
    keys = [f"job/{name}/{part}" for part in parts]
    keys += [f"{kind}/{name}/{block}" for kind, known in blocks.items() for block in known]
    return [*map(Key, keys), *(result.key for result in job.results.values())]
