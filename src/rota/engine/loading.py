"""In which order records are taken up that are read all at once: what others belong to comes first."""

from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import Cluster
from rota.model.job import Counters, JobCluster, JobGone, JobSpec, JobStatus, JobVerdict, JobWish, SubmitKey
from rota.model.namespace import Namespace
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.plan import Record
from rota.model.subscriber import Subscriber
from rota.model.task import TaskBlock


def load_order(record: Record) -> int:
    match record:
        case JobSpec() | NodeSpec() | Counters() | Cluster() | Namespace() | Subscriber():
            return 0
        case JobWish() | JobCluster() | JobStatus() | JobVerdict() | NodeWish() | NodeStatus():
            return 1
        case SubmitKey() | JobGone():
            return 1
        case AttemptBlock():
            return 2
        case StatusBlock():
            return 3
        case TaskBlock():
            return 4
