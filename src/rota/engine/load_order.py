"""A record -> its turn when all are read: what others stand on comes first."""

from rota.model.adoption import JobAdoption
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import Cluster, ClusterWish, Machine
from rota.model.cron import Cron, CronStatus
from rota.model.job import (
    Counters,
    JobCluster,
    JobGone,
    JobSpec,
    JobStatus,
    JobVerdict,
    JobWish,
    SubmitKey,
    Unplaceable,
)
from rota.model.namespace import Namespace
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.pace import ReportPace
from rota.model.pins import PinBlock
from rota.model.plan import Record
from rota.model.recovery import JobAnswers
from rota.model.restored import Restored
from rota.model.result import Result
from rota.model.rollout import JobFormer, JobRollout
from rota.model.subscriber import Subscriber
from rota.model.task import TaskBlock


def load_order(record: Record) -> tuple[int, int]:
    """Jobs by their numbers, as they came: whoever lists them relies on it."""
    match record:
        case PinBlock():
            return _turn(record), record.block
        case JobSpec():
            return _turn(record), int(record.id)
        case _:
            return _turn(record), 0


def _turn(record: Record) -> int:
    match record:
        case (
            JobSpec()
            | NodeSpec()
            | Counters()
            | ReportPace()
            | Restored()
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
            | Unplaceable()
            | JobAnswers()
            | Result()
            | JobFormer()
            | JobRollout()
            | JobAdoption()
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
