"""A record -> its rank when a mirror is loaded: records that others refer to come first."""

from rota.model.adoption import JobAdoption, Restored
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
from rota.model.node import NodeIntent, NodeSpec, NodeStatus, ReportInterval
from rota.model.plan import Record
from rota.model.recovery import RecoveryAnswers
from rota.model.result import ResultRecord
from rota.model.rollout import JobPreviousVersion, JobRollout
from rota.model.subscriber import Subscriber
from rota.model.task import PinBlock, TaskBlock


def load_order(record: Record) -> tuple[int, int]:
    """Sort key of a record; jobs come by number, because pages of job lists rely on that order."""
    match record:
        case PinBlock():
            return _rank(record), record.block
        case JobSpec():
            return _rank(record), int(record.id)
        case _:
            return _rank(record), 0


def _rank(record: Record) -> int:
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
        # After the jobs and nodes that they refer to; holds are reserved on nodes that must exist.
        case AttemptBlock():
            return 2
        case StatusBlock():
            return 3
        case TaskBlock():
            return 4
