"""The state tables and step(): nothing else says what may follow what."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import TypeVar

from rota.model.errors import IllegalTransition


class JobState(StrEnum):
    SUBMITTED = "submitted"
    ASSIGNED = "assigned"
    WAITING = "waiting"  # for other jobs to end
    ACTIVE = "active"
    PAUSED = "paused"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"


class JobEvent(StrEnum):
    CLUSTER_CHOSEN = "cluster chosen"
    OTHERS_FIRST = "others first"
    NEVER_TO_BEGIN = "never to begin"
    TASKS_WANTED = "tasks wanted"
    PAUSE_WISHED = "pause wished"
    RESUME_WISHED = "resume wished"
    CANCEL_WISHED = "cancel wished"
    ALL_SUCCEEDED = "all succeeded"
    SOME_FAILED = "some failed"
    SOME_TIMED_OUT = "some timed out"
    ALL_STOPPED = "all stopped"
    NOWHERE_TO_RUN = "nowhere to run"


class TaskState(IntEnum):
    """Stored as one byte per task: numbers are part of the format and never change."""

    WANTED = 0
    UNWANTED = 1
    SUCCEEDED = 2
    FAILED = 3
    CANCELED = 4
    TIMED_OUT = 5
    LOST = 6
    HELD = 7  # not started until released: suspected of taking nodes down, or perhaps run by another node


class TaskEvent(StrEnum):
    DONE = "done"
    AGAIN = "again"
    SPENT = "retries spent"
    UNWISHED = "no longer wished"
    STOPPED = "stopped"
    OVERTIME = "over its time limit"
    GONE = "gone with its node"
    SUSPECTED = "suspected"
    RELEASED = "released"
    UNCLAIMED = "held too long"
    UNSEEN = "brought back by no node yet"
    MISSED = "brought back by no node in time"


class AttemptState(IntEnum):
    """Stored as one byte per task: numbers are part of the format and never change."""

    OFFERED = 0
    QUEUED = 1
    ACCEPTED = 2
    RUNNING = 3
    STOPPING = 4
    SUCCEEDED = 5
    FAILED = 6
    STOPPED = 7
    TIMED_OUT = 8
    LOST = 9
    REFUSED = 10
    WITHDRAWN = 11


class AttemptEvent(StrEnum):
    HELD = "held"
    TAKEN = "taken"
    STARTED = "started"
    STOP_ORDERED = "stop ordered"
    EXITED_0 = "exited with 0"
    EXITED = "exited badly"
    STOPPED = "stopped as asked"
    OVERTIME = "over its time limit"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    FORGOTTEN = "forgotten by its node"
    UNKNOWN = "unknown to its node"
    NODE_LOST = "node lost"


class NodeState(StrEnum):
    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"
    LEFT = "left"


class NodeEvent(StrEnum):
    HELLO = "said hello"
    SILENT = "silent"
    GONE = "silent too long"
    LEFT = "left"


class ClusterState(StrEnum):
    REQUESTED = "requested"
    PROVISIONING = "provisioning"  # its first machines are on their way
    READY = "ready"
    RESIZING = "resizing"  # ready, and machines come or go
    UNAVAILABLE = "unavailable"  # its nodes join by hand, and none is there
    DRAINING = "draining"  # no new jobs
    ENDED = "ended"
    FAILED = "failed"


class ClusterEvent(StrEnum):
    ASKED_FOR = "asked for"
    ENOUGH = "enough nodes"
    MACHINES_MOVE = "machines come or go"
    SETTLED = "settled"
    DRAIN_WISHED = "drain wished"
    OPEN_WISHED = "open wished"
    NO_NODE = "no node is there"
    NODE_CAME = "a node is there"
    EMPTY = "empty"
    BROKEN = "broken"


class MachineState(StrEnum):
    WANTED = "wanted"  # its provider is asked for it
    CREATED = "created"  # its provider has said so
    JOINED = "joined"
    DRAINING = "draining"  # its node takes nothing new
    LEAVING = "leaving"  # nothing runs on it: its provider is asked to end it


class MachineEvent(StrEnum):
    MADE = "made"
    JOINED = "joined"
    UNWANTED = "no longer wanted"
    EMPTY = "empty"


S = TypeVar("S")
E = TypeVar("E")
Table = Mapping[tuple[S, E], S]

_J, _JE = JobState, JobEvent
JOB: Table[JobState, JobEvent] = {  # owner: controllers
    (_J.SUBMITTED, _JE.CLUSTER_CHOSEN): _J.ASSIGNED,
    (_J.SUBMITTED, _JE.NOWHERE_TO_RUN): _J.REJECTED,
    (_J.SUBMITTED, _JE.CANCEL_WISHED): _J.CANCELED,
    (_J.SUBMITTED, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ASSIGNED, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ASSIGNED, _JE.TASKS_WANTED): _J.ACTIVE,
    (_J.ASSIGNED, _JE.CANCEL_WISHED): _J.CANCELED,
    (_J.ASSIGNED, _JE.OTHERS_FIRST): _J.WAITING,
    (_J.WAITING, _JE.TASKS_WANTED): _J.ACTIVE,
    (_J.WAITING, _JE.NEVER_TO_BEGIN): _J.CANCELED,
    (_J.WAITING, _JE.CANCEL_WISHED): _J.CANCELED,
    (_J.WAITING, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ACTIVE, _JE.CANCEL_WISHED): _J.CANCELING,
    (_J.ACTIVE, _JE.ALL_SUCCEEDED): _J.SUCCEEDED,
    (_J.ACTIVE, _JE.SOME_FAILED): _J.FAILED,
    (_J.ACTIVE, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ACTIVE, _JE.ALL_STOPPED): _J.CANCELED,
    (_J.ACTIVE, _JE.NOWHERE_TO_RUN): _J.REJECTED,
    (_J.ACTIVE, _JE.PAUSE_WISHED): _J.PAUSED,
    (_J.PAUSED, _JE.RESUME_WISHED): _J.ACTIVE,
    (_J.PAUSED, _JE.CANCEL_WISHED): _J.CANCELING,
    (_J.PAUSED, _JE.ALL_SUCCEEDED): _J.SUCCEEDED,  # what ran has ended meanwhile
    (_J.PAUSED, _JE.SOME_FAILED): _J.FAILED,
    (_J.PAUSED, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.PAUSED, _JE.ALL_STOPPED): _J.CANCELED,
    (_J.CANCELING, _JE.ALL_STOPPED): _J.CANCELED,
}

_T, _TE = TaskState, TaskEvent
TASK: Table[TaskState, TaskEvent] = {  # owner: controllers
    (_T.WANTED, _TE.DONE): _T.SUCCEEDED,
    (_T.WANTED, _TE.AGAIN): _T.WANTED,
    (_T.WANTED, _TE.SPENT): _T.FAILED,
    (_T.WANTED, _TE.OVERTIME): _T.TIMED_OUT,
    (_T.WANTED, _TE.GONE): _T.LOST,
    (_T.WANTED, _TE.STOPPED): _T.CANCELED,
    (_T.WANTED, _TE.UNWISHED): _T.UNWANTED,
    (_T.WANTED, _TE.SUSPECTED): _T.HELD,
    (_T.WANTED, _TE.UNSEEN): _T.HELD,  # of an adopted job: another node may run it
    (_T.HELD, _TE.RELEASED): _T.WANTED,
    (_T.HELD, _TE.UNCLAIMED): _T.FAILED,
    (_T.HELD, _TE.MISSED): _T.LOST,
    (_T.HELD, _TE.STOPPED): _T.CANCELED,
    (_T.HELD, _TE.OVERTIME): _T.TIMED_OUT,
    (_T.UNWANTED, _TE.DONE): _T.SUCCEEDED,  # it ended before the stop reached it
    (_T.UNWANTED, _TE.SPENT): _T.FAILED,
    (_T.UNWANTED, _TE.OVERTIME): _T.TIMED_OUT,
    (_T.UNWANTED, _TE.STOPPED): _T.CANCELED,
    (_T.UNWANTED, _TE.GONE): _T.CANCELED,
}

_A, _AE = AttemptState, AttemptEvent
_ENDS: dict[AttemptEvent, AttemptState] = {
    _AE.EXITED_0: _A.SUCCEEDED,
    _AE.EXITED: _A.FAILED,
    _AE.STOPPED: _A.STOPPED,
    _AE.OVERTIME: _A.TIMED_OUT,
    _AE.FORGOTTEN: _A.LOST,
    _AE.NODE_LOST: _A.LOST,
}
ATTEMPT: Table[AttemptState, AttemptEvent] = {  # owner: watcher
    **{
        (state, event): end
        for state in (_A.OFFERED, _A.QUEUED, _A.ACCEPTED, _A.RUNNING, _A.STOPPING)
        for event, end in _ENDS.items()  # the report of an earlier step may have been lost
    },
    (_A.OFFERED, _AE.HELD): _A.QUEUED,
    (_A.OFFERED, _AE.TAKEN): _A.ACCEPTED,
    (_A.OFFERED, _AE.STARTED): _A.RUNNING,
    (_A.OFFERED, _AE.REFUSED): _A.REFUSED,
    (_A.OFFERED, _AE.WITHDRAWN): _A.WITHDRAWN,
    (_A.OFFERED, _AE.UNKNOWN): _A.WITHDRAWN,  # the offer never arrived
    (_A.OFFERED, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.QUEUED, _AE.TAKEN): _A.ACCEPTED,
    (_A.QUEUED, _AE.STARTED): _A.RUNNING,
    (_A.QUEUED, _AE.REFUSED): _A.REFUSED,
    (_A.QUEUED, _AE.WITHDRAWN): _A.WITHDRAWN,
    (_A.QUEUED, _AE.UNKNOWN): _A.WITHDRAWN,
    (_A.QUEUED, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.ACCEPTED, _AE.STARTED): _A.RUNNING,
    (_A.ACCEPTED, _AE.REFUSED): _A.REFUSED,  # it could not be started: a full disk, no process to spare
    (_A.ACCEPTED, _AE.WITHDRAWN): _A.WITHDRAWN,
    (_A.ACCEPTED, _AE.UNKNOWN): _A.WITHDRAWN,
    (_A.ACCEPTED, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.RUNNING, _AE.UNKNOWN): _A.LOST,
    (_A.RUNNING, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.STOPPING, _AE.UNKNOWN): _A.LOST,
    (_A.STOPPING, _AE.WITHDRAWN): _A.STOPPED,  # it was still waiting on the node
}

_N, _NE = NodeState, NodeEvent
NODE: Table[NodeState, NodeEvent] = {  # owner: watcher; the only one that may go back
    (_N.READY, _NE.HELLO): _N.READY,
    (_N.READY, _NE.SILENT): _N.SUSPECT,
    (_N.READY, _NE.LEFT): _N.LEFT,
    (_N.SUSPECT, _NE.HELLO): _N.READY,
    (_N.SUSPECT, _NE.GONE): _N.LOST,
    (_N.SUSPECT, _NE.LEFT): _N.LEFT,
    (_N.LOST, _NE.HELLO): _N.READY,
    (_N.LOST, _NE.LEFT): _N.LEFT,
    (_N.LEFT, _NE.HELLO): _N.READY,
}

_C, _CE = ClusterState, ClusterEvent
_GOING_ON = (_C.REQUESTED, _C.PROVISIONING, _C.READY, _C.RESIZING, _C.UNAVAILABLE)
CLUSTER: Table[ClusterState, ClusterEvent] = {  # owner: clusters
    (_C.REQUESTED, _CE.ASKED_FOR): _C.PROVISIONING,
    (_C.PROVISIONING, _CE.ENOUGH): _C.READY,
    (_C.READY, _CE.MACHINES_MOVE): _C.RESIZING,
    (_C.RESIZING, _CE.SETTLED): _C.READY,
    (_C.PROVISIONING, _CE.NO_NODE): _C.UNAVAILABLE,
    (_C.READY, _CE.NO_NODE): _C.UNAVAILABLE,
    (_C.UNAVAILABLE, _CE.NODE_CAME): _C.READY,
    **{(state, _CE.ASKED_FOR): _C.PROVISIONING for state in (_C.UNAVAILABLE, _C.FAILED)},  # it got a provider
    (_C.FAILED, _CE.NODE_CAME): _C.READY,  # only where nodes join by hand
    **{(state, _CE.DRAIN_WISHED): _C.DRAINING for state in (*_GOING_ON, _C.FAILED)},
    (_C.DRAINING, _CE.OPEN_WISHED): _C.PROVISIONING,
    (_C.DRAINING, _CE.EMPTY): _C.ENDED,
    **{(state, _CE.BROKEN): _C.FAILED for state in _GOING_ON},
}

_M, _ME = MachineState, MachineEvent
MACHINE: Table[MachineState, MachineEvent] = {  # owner: clusters; its record ends with it
    (_M.WANTED, _ME.MADE): _M.CREATED,
    (_M.WANTED, _ME.JOINED): _M.JOINED,  # it may be faster than its provider's answer
    (_M.CREATED, _ME.JOINED): _M.JOINED,
    (_M.WANTED, _ME.UNWANTED): _M.LEAVING,
    (_M.CREATED, _ME.UNWANTED): _M.LEAVING,
    (_M.JOINED, _ME.UNWANTED): _M.DRAINING,
    (_M.DRAINING, _ME.EMPTY): _M.LEAVING,
}

NODE_IS_THERE = frozenset({_N.READY, _N.SUSPECT})  # a suspect node may come back before it is lost
JOB_ENDS = frozenset({_J.SUCCEEDED, _J.FAILED, _J.CANCELED, _J.TIMED_OUT, _J.REJECTED})
TASK_ENDS = frozenset({_T.SUCCEEDED, _T.FAILED, _T.CANCELED, _T.TIMED_OUT, _T.LOST})
ATTEMPT_FIRST_END = AttemptState.SUCCEEDED  # this and every higher number is an end
NOT_A_TRY = frozenset(
    {_A.REFUSED, _A.WITHDRAWN}
)  # ended without having been tried: the same try is placed again


def step(table: Table[S, E], state: S, event: E) -> S:
    try:
        return table[state, event]
    except KeyError:
        raise IllegalTransition(f"{state!r} has no step for {event!r}") from None
