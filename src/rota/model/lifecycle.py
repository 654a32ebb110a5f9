"""The state machines of jobs, tasks, attempts, nodes, clusters and machines, as tables.

A transition that is not in a table raises IllegalTransition: no component may write a state any other way.
Values of states are stored and shown; values of events appear in documentation and error messages only.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import TypeVar

from rota.model.errors import IllegalTransition


class JobState(StrEnum):
    SUBMITTED = "submitted"
    ASSIGNED = "assigned"
    WAITING = "waiting"  # for its dependencies
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
    DEPENDENCIES_PENDING = "dependencies pending"
    DEPENDENCY_FAILED = "dependency failed"
    TASKS_CREATED = "tasks created"
    PAUSE_REQUESTED = "pause requested"
    RESUME_REQUESTED = "resume requested"
    CANCEL_REQUESTED = "cancel requested"
    ALL_SUCCEEDED = "all succeeded"
    SOME_FAILED = "some failed"
    SOME_TIMED_OUT = "some timed out"
    ALL_STOPPED = "all stopped"
    UNPLACEABLE = "unplaceable"


class TaskState(IntEnum):
    """Stored as one byte per task: numbers are part of the format and never change."""

    WANTED = 0
    UNWANTED = 1
    SUCCEEDED = 2
    FAILED = 3
    CANCELED = 4
    TIMED_OUT = 5
    LOST = 6
    HELD = 7  # not placed until released: in quarantine, or possibly run by a node that has not reconnected


class TaskEvent(StrEnum):
    SUCCEEDED = "succeeded"
    RETRY = "retry"
    RETRIES_EXHAUSTED = "retries exhausted"
    CANCEL_REQUESTED = "cancel requested"
    STOPPED = "stopped"
    TIMED_OUT = "timed out"
    NODE_LOST = "node lost"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    HOLD_EXPIRED = "hold expired"
    ADOPTION_PENDING = "adoption pending"
    ADOPTION_EXPIRED = "adoption expired"


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
    QUEUED = "queued"
    ACCEPTED = "accepted"
    STARTED = "started"
    STOP_ORDERED = "stop ordered"
    EXITED_ZERO = "exited with 0"
    EXITED_NONZERO = "exited with another code"
    STOPPED = "stopped as ordered"
    TIMED_OUT = "timed out"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    RESULT_LOST = "result lost"
    UNKNOWN_TO_NODE = "unknown to its node"
    NODE_LOST = "node lost"


class NodeState(StrEnum):
    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"
    LEFT = "left"


class NodeEvent(StrEnum):
    HELLO = "hello"
    SUSPECT_TIMEOUT = "suspect timeout"
    LOST_TIMEOUT = "lost timeout"
    LEFT = "left"


class ClusterState(StrEnum):
    REQUESTED = "requested"
    PROVISIONING = "provisioning"  # its first machines are being created
    READY = "ready"
    RESIZING = "resizing"  # ready, and machines are being added or removed
    UNAVAILABLE = "unavailable"  # its nodes join by hand, and none is present
    DRAINING = "draining"  # no new jobs
    ENDED = "ended"
    FAILED = "failed"


class ClusterEvent(StrEnum):
    REQUESTED = "asked for"
    NODES_SUFFICIENT = "enough nodes"
    RESIZE_STARTED = "machines come or go"
    RESIZE_FINISHED = "settled"
    DRAIN_REQUESTED = "drain requested"
    OPEN_REQUESTED = "open requested"
    NODES_ABSENT = "no node is there"
    NODE_JOINED = "a node is there"
    EMPTY = "empty"
    FAILED = "broken"


class MachineState(StrEnum):
    WANTED = "wanted"  # requested from its provider
    CREATED = "created"  # confirmed by its provider
    JOINED = "joined"
    DRAINING = "draining"  # its node takes no new tasks
    LEAVING = "leaving"  # nothing runs on it: its provider is asked to remove it


class MachineEvent(StrEnum):
    CREATED = "created by its provider"
    JOINED = "joined"
    NO_LONGER_DESIRED = "no longer desired"
    EMPTY = "empty"


S = TypeVar("S")
E = TypeVar("E")
Table = Mapping[tuple[S, E], S]

_J, _JE = JobState, JobEvent
JOB: Table[JobState, JobEvent] = {  # owner: controllers
    (_J.SUBMITTED, _JE.CLUSTER_CHOSEN): _J.ASSIGNED,
    (_J.SUBMITTED, _JE.UNPLACEABLE): _J.REJECTED,
    (_J.SUBMITTED, _JE.CANCEL_REQUESTED): _J.CANCELED,
    (_J.SUBMITTED, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ASSIGNED, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ASSIGNED, _JE.TASKS_CREATED): _J.ACTIVE,
    (_J.ASSIGNED, _JE.CANCEL_REQUESTED): _J.CANCELED,
    (_J.ASSIGNED, _JE.DEPENDENCIES_PENDING): _J.WAITING,
    (_J.WAITING, _JE.TASKS_CREATED): _J.ACTIVE,
    (_J.WAITING, _JE.DEPENDENCY_FAILED): _J.CANCELED,
    (_J.WAITING, _JE.CANCEL_REQUESTED): _J.CANCELED,
    (_J.WAITING, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ACTIVE, _JE.CANCEL_REQUESTED): _J.CANCELING,
    (_J.ACTIVE, _JE.ALL_SUCCEEDED): _J.SUCCEEDED,
    (_J.ACTIVE, _JE.SOME_FAILED): _J.FAILED,
    (_J.ACTIVE, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.ACTIVE, _JE.ALL_STOPPED): _J.CANCELED,
    (_J.ACTIVE, _JE.UNPLACEABLE): _J.REJECTED,
    (_J.ACTIVE, _JE.PAUSE_REQUESTED): _J.PAUSED,
    (_J.PAUSED, _JE.RESUME_REQUESTED): _J.ACTIVE,
    (_J.PAUSED, _JE.CANCEL_REQUESTED): _J.CANCELING,
    (_J.PAUSED, _JE.ALL_SUCCEEDED): _J.SUCCEEDED,  # running attempts ended while it was paused
    (_J.PAUSED, _JE.SOME_FAILED): _J.FAILED,
    (_J.PAUSED, _JE.SOME_TIMED_OUT): _J.TIMED_OUT,
    (_J.PAUSED, _JE.ALL_STOPPED): _J.CANCELED,
    (_J.CANCELING, _JE.ALL_STOPPED): _J.CANCELED,
}

_T, _TE = TaskState, TaskEvent
TASK: Table[TaskState, TaskEvent] = {  # owner: controllers
    (_T.WANTED, _TE.SUCCEEDED): _T.SUCCEEDED,
    (_T.WANTED, _TE.RETRY): _T.WANTED,
    (_T.WANTED, _TE.RETRIES_EXHAUSTED): _T.FAILED,
    (_T.WANTED, _TE.TIMED_OUT): _T.TIMED_OUT,
    (_T.WANTED, _TE.NODE_LOST): _T.LOST,
    (_T.WANTED, _TE.STOPPED): _T.CANCELED,
    (_T.WANTED, _TE.CANCEL_REQUESTED): _T.UNWANTED,
    (_T.WANTED, _TE.QUARANTINED): _T.HELD,
    (_T.WANTED, _TE.ADOPTION_PENDING): _T.HELD,  # of an adopted job: another node may run it
    (_T.HELD, _TE.RELEASED): _T.WANTED,
    (_T.HELD, _TE.HOLD_EXPIRED): _T.FAILED,
    (_T.HELD, _TE.ADOPTION_EXPIRED): _T.LOST,
    (_T.HELD, _TE.STOPPED): _T.CANCELED,
    (_T.HELD, _TE.TIMED_OUT): _T.TIMED_OUT,
    (_T.UNWANTED, _TE.SUCCEEDED): _T.SUCCEEDED,  # it ended before the stop reached it
    # An end that came before the stop counts as it was: a result is never replaced by a cancellation.
    (_T.UNWANTED, _TE.RETRIES_EXHAUSTED): _T.FAILED,
    (_T.UNWANTED, _TE.TIMED_OUT): _T.TIMED_OUT,
    (_T.UNWANTED, _TE.STOPPED): _T.CANCELED,
    # Nothing is left to stop, and no user waits for its result: without this the job
    # would be canceling for ever.
    (_T.UNWANTED, _TE.NODE_LOST): _T.CANCELED,
}

_A, _AE = AttemptState, AttemptEvent
_ENDS: dict[AttemptEvent, AttemptState] = {
    _AE.EXITED_ZERO: _A.SUCCEEDED,
    _AE.EXITED_NONZERO: _A.FAILED,
    _AE.STOPPED: _A.STOPPED,
    _AE.TIMED_OUT: _A.TIMED_OUT,
    _AE.RESULT_LOST: _A.LOST,
    _AE.NODE_LOST: _A.LOST,
}
ATTEMPT: Table[AttemptState, AttemptEvent] = {  # owner: watcher
    **{
        (state, event): end
        for state in (_A.OFFERED, _A.QUEUED, _A.ACCEPTED, _A.RUNNING, _A.STOPPING)
        for event, end in _ENDS.items()  # reports of the states in between may have been lost
    },
    (_A.OFFERED, _AE.QUEUED): _A.QUEUED,
    (_A.OFFERED, _AE.ACCEPTED): _A.ACCEPTED,
    (_A.OFFERED, _AE.STARTED): _A.RUNNING,
    (_A.OFFERED, _AE.REFUSED): _A.REFUSED,
    (_A.OFFERED, _AE.WITHDRAWN): _A.WITHDRAWN,
    (_A.OFFERED, _AE.UNKNOWN_TO_NODE): _A.WITHDRAWN,  # the offer never arrived
    (_A.OFFERED, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.QUEUED, _AE.ACCEPTED): _A.ACCEPTED,
    (_A.QUEUED, _AE.STARTED): _A.RUNNING,
    (_A.QUEUED, _AE.REFUSED): _A.REFUSED,
    (_A.QUEUED, _AE.WITHDRAWN): _A.WITHDRAWN,
    (_A.QUEUED, _AE.UNKNOWN_TO_NODE): _A.WITHDRAWN,
    (_A.QUEUED, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.ACCEPTED, _AE.STARTED): _A.RUNNING,
    (_A.ACCEPTED, _AE.REFUSED): _A.REFUSED,  # it could not be started: a full disk, no free pid
    (_A.ACCEPTED, _AE.WITHDRAWN): _A.WITHDRAWN,
    (_A.ACCEPTED, _AE.UNKNOWN_TO_NODE): _A.WITHDRAWN,
    (_A.ACCEPTED, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.RUNNING, _AE.UNKNOWN_TO_NODE): _A.LOST,
    (_A.RUNNING, _AE.STOP_ORDERED): _A.STOPPING,
    (_A.STOPPING, _AE.UNKNOWN_TO_NODE): _A.LOST,
    (_A.STOPPING, _AE.WITHDRAWN): _A.STOPPED,  # it was still waiting on the node
}

_N, _NE = NodeState, NodeEvent
NODE: Table[NodeState, NodeEvent] = {  # owner: watcher; the only table with a way back from an end
    (_N.READY, _NE.HELLO): _N.READY,
    (_N.READY, _NE.SUSPECT_TIMEOUT): _N.SUSPECT,
    (_N.READY, _NE.LEFT): _N.LEFT,
    (_N.SUSPECT, _NE.HELLO): _N.READY,
    (_N.SUSPECT, _NE.LOST_TIMEOUT): _N.LOST,
    (_N.SUSPECT, _NE.LEFT): _N.LEFT,
    # Lost is a judgement from silence, and a partition heals. Its attempts were replaced,
    # and are stopped as superseded.
    (_N.LOST, _NE.HELLO): _N.READY,
    (_N.LOST, _NE.LEFT): _N.LEFT,
    # The same machine may be started again with the same identity.
    (_N.LEFT, _NE.HELLO): _N.READY,
}

_C, _CE = ClusterState, ClusterEvent
_GOING_ON = (_C.REQUESTED, _C.PROVISIONING, _C.READY, _C.RESIZING, _C.UNAVAILABLE)
CLUSTER: Table[ClusterState, ClusterEvent] = {  # owner: clusters
    (_C.REQUESTED, _CE.REQUESTED): _C.PROVISIONING,
    (_C.PROVISIONING, _CE.NODES_SUFFICIENT): _C.READY,
    (_C.READY, _CE.RESIZE_STARTED): _C.RESIZING,
    (_C.RESIZING, _CE.RESIZE_FINISHED): _C.READY,
    (_C.PROVISIONING, _CE.NODES_ABSENT): _C.UNAVAILABLE,
    (_C.READY, _CE.NODES_ABSENT): _C.UNAVAILABLE,
    (_C.UNAVAILABLE, _CE.NODE_JOINED): _C.READY,
    **{(state, _CE.REQUESTED): _C.PROVISIONING for state in (_C.UNAVAILABLE, _C.FAILED)},  # it got a provider
    (_C.FAILED, _CE.NODE_JOINED): _C.READY,  # only where nodes join by hand
    **{(state, _CE.DRAIN_REQUESTED): _C.DRAINING for state in (*_GOING_ON, _C.FAILED)},
    (_C.DRAINING, _CE.OPEN_REQUESTED): _C.PROVISIONING,
    (_C.DRAINING, _CE.EMPTY): _C.ENDED,
    **{(state, _CE.FAILED): _C.FAILED for state in _GOING_ON},
}

_M, _ME = MachineState, MachineEvent
MACHINE: Table[MachineState, MachineEvent] = {  # owner: clusters; its record is deleted at its end
    (_M.WANTED, _ME.CREATED): _M.CREATED,
    (_M.WANTED, _ME.JOINED): _M.JOINED,  # race: it may join before its provider has answered
    (_M.CREATED, _ME.JOINED): _M.JOINED,
    (_M.WANTED, _ME.NO_LONGER_DESIRED): _M.LEAVING,
    (_M.CREATED, _ME.NO_LONGER_DESIRED): _M.LEAVING,
    (_M.JOINED, _ME.NO_LONGER_DESIRED): _M.DRAINING,
    (_M.DRAINING, _ME.EMPTY): _M.LEAVING,
}

NODE_PRESENT = frozenset({_N.READY, _N.SUSPECT})  # a suspect node may come back before it is lost
JOB_ENDS = frozenset({_J.SUCCEEDED, _J.FAILED, _J.CANCELED, _J.TIMED_OUT, _J.REJECTED})
TASK_ENDS = frozenset({_T.SUCCEEDED, _T.FAILED, _T.CANCELED, _T.TIMED_OUT, _T.LOST})
ATTEMPT_FIRST_END = AttemptState.SUCCEEDED  # this and every higher number is an end
# Ended without having started: placed again for the same desired attempt number, at no cost of a retry.
NOT_STARTED = frozenset({_A.REFUSED, _A.WITHDRAWN})


def step(table: Table[S, E], state: S, event: E) -> S:
    try:
        return table[state, event]
    except KeyError:
        raise IllegalTransition(f"{state!r} has no step for {event!r}") from None
