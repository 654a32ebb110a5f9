"""A record -> its turn when all are read: what others stand on comes first."""

from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import Cluster, ClusterWish, Machine
from rota.model.cron import Cron, CronStatus
from rota.model.job import Counters, JobCluster, JobGone, JobSpec, JobStatus, JobVerdict, JobWish, SubmitKey
from rota.model.namespace import Namespace
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.pace import ReportPace
from rota.model.pins import PinBlock
from rota.model.plan import Record
from rota.model.recovery import JobAnswers
from rota.model.subscriber import Subscriber
from rota.model.task import TaskBlock


def load_order(record: Record) -> tuple[int, int]:
    return _turn(record), record.block if isinstance(record, PinBlock) else 0


def _turn(record: Record) -> int:
    match record:
        case (
            JobSpec()
            | NodeSpec()
            | Counters()
            | ReportPace()
            | Cluster()
            | ClusterWish()
            | Namespace()
            | Subscriber()
            | Cron()
            | CronStatus()
        ):
            return 0
        case (
            PinBlock()
            | JobWish()
            | JobCluster()
            | JobStatus()
            | JobVerdict()
            | JobAnswers()
            | SubmitKey()
            | JobGone()
            | NodeWish()
            | NodeStatus()
            | Machine()
        ):
            return 1
        case AttemptBlock():
            return 2
        case StatusBlock():
            return 3
        case TaskBlock():
            return 4
