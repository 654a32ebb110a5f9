"""Pending tasks -> attempts on nodes: one round whenever something changed that a task may wait for."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.adoption import JobAdoption
from rota.model.attempt import StatusBlock
from rota.model.ids import JobId
from rota.model.job import JobCluster, JobSpec, JobStatus
from rota.model.namespace import Namespace
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.pins import PinBlock
from rota.model.plan import NOTHING, Instant, Plan, Record
from rota.model.task import TaskBlock
from rota.model.view import View
from rota.scheduler.ahead import Known
from rota.scheduler.pins import pin
from rota.scheduler.round import Memory, Round, Settings

ROUND = "round"
_WAKING = (
    JobStatus,
    JobAdoption,
    TaskBlock,
    StatusBlock,
    NodeStatus,
    NodeWish,
    NodeSpec,
    Namespace,
    PinBlock,
)


def reconciler(settings: Settings | None = None, scheduler: "Scheduler | None" = None) -> Reconciler:
    wakes: Wakes = {**dict.fromkeys(_WAKING, _wakes), JobSpec: _grown, JobCluster: _moved}
    decide = (scheduler or Scheduler(settings or Settings())).decide
    return Reconciler("place", "scheduler", wakes, decide, _start)


def _wakes(record: Record) -> Iterable[str]:
    del record
    return (ROUND,)


def _grown(spec: JobSpec) -> Iterable[str]:
    """Tasks may have been added."""
    return (ROUND,) if spec.version > 1 else ()


def _moved(record: JobCluster) -> Iterable[str]:
    """Of a job that is assigned for the first time no task is wanted yet."""
    return (ROUND,) if record.moved else ()


def _start(view: View) -> Iterable[str]:
    del view
    return (ROUND,)


class Scheduler:
    """Rounds, and what is remembered between them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.memory: Memory | None = None  # None: it has decided nothing yet

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        del key
        memory, self.memory = (
            self.memory,
            None,
        )  # a round that raises leaves its memory half-changed: forget it
        if memory is None or memory.room is not view.room:  # all was read again: it is of other columns
            memory = Memory(view, self._settings)
        plan = self._decide(view, memory, now)
        self.memory = memory
        return plan

    def _decide(self, view: View, memory: Memory, now: Instant) -> Plan:
        memory.forget_lapsed(view, now)
        if view.is_short:  # of disk space: what is left is for the ends of what runs
            return NOTHING
        memory.seating.begin(view)
        if view.systems:
            pinned = pin(view, memory.seating, memory.pinned)
            if pinned is not None:
                return pinned  # it wakes the next round, for the new tasks too
        return Round(view, memory, self._settings, now).run()

    def known(self) -> Known | None:
        """What it remembers of the queue; None: it has decided nothing yet."""
        if self.memory is None:
            return None
        first = self.memory.first
        return Known(None if first is None else first.job)

    def room_made_for(self, job: JobId) -> list[int]:
        """Slots that others are leaving for its tasks, one for each."""
        nominated = {} if self.memory is None else self.memory.nominated
        return [nomination.slot for nomination in nominated.get(job, [])]
