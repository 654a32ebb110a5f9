"""A record -> its turn when all are read: what others stand on comes first."""

from rota.model.adoption import JobAdoption
from rota.model.attempt import AttemptBlock, StatusBlock
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.cron import CronRecord, CronStatus
from rota.model.job import (
    Counters,
    JobCluster,
    JobIntent,
    JobSpec,
    JobStatus,
    JobTombstone,
    SchedulerVerdict,
    SubmitKey,
    Unplaceable,
)
from rota.model.namespace import NamespaceRecord
from rota.model.node import NodeIntent, NodeSpec, NodeStatus
from rota.model.plan import Record
from rota.model.recovery import RecoveryAnswers
from rota.model.report_interval import ReportInterval
from rota.model.restored import Restored
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout
from rota.model.subscriber import Subscriber
from rota.model.system_job import PinBlock
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
            | ReportInterval()
            | Restored()
            | ClusterRecord()
            | ClusterIntent()
            | NamespaceRecord()
            | Subscriber()
            | CronRecord()
            | CronStatus()
        ):
            return 0
        case (
            PinBlock()
            | JobIntent()
            | JobCluster()
            | JobStatus()
            | SchedulerVerdict()
            | Unplaceable()
            | RecoveryAnswers()
            | ResultRecord()
            | JobPreviousVersion()
            | JobRollout()
            | JobAdoption()
            | SubmitKey()
            | JobTombstone()
            | NodeIntent()
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
