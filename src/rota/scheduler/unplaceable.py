"""A job that no node can take -> a record of the reason, and an event whenever that changes.

Theory of operation
-------------------
A job that waits in a line is *unplaceable* in one of three ways (`rota.model.job.Cause`):

* NEVER: no node of its cluster could run a task of it, even if it were empty and open, and no node that
  could comes by itself;
* REFUSED: every open node that could run it has refused one of its tasks lately;
* WAITS: it finds no room, has waited for a second, and asks for nodes (`when_unschedulable = "scale"`).

What was found is a record, so that the event is sent once per change, also across a restart of the server,
and so that the API can show the reason without looking at nodes. A job that waits costs nothing in later
rounds: its own key is looked at when it becomes active, when a node refuses one of its tasks and, once it has
a record, when its attempts change. Nodes that change are one key (`LINES`), which looks at the first job of
each line, in slices, and at the others of a line only where the first one has changed. Every few seconds it
also looks at jobs that ran before and have joined a line again since.

A refusal lapses after 30 s and the task is offered again, so a job that every node refuses alternates between
waiting and being offered. REFUSED therefore stays until a node has accepted a task of the job, not until the
refusals have lapsed.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.attempt import StatusBlock
from rota.model.cluster import Cluster, ClusterWish
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.job import Cause, JobCluster, JobSpec, JobStatus, Kind, Unplaceable, Unschedulable
from rota.model.lifecycle import AttemptState, JobState
from rota.model.limits import (
    ASK_FOR_NODE_MS,
    NODE_TASKS_MAX,
    ROWS_KEPT,
    UNPLACEABLE_JOBS_A_LOOK,
    UNPLACEABLE_LINES_A_LOOK,
    UNPLACEABLE_LOOK_MS,
    UNPLACEABLE_PAUSE_MS,
)
from rota.model.node import NodeSpec, NodeStatus, NodeWish
from rota.model.plan import NOTHING, Event, Instant, Plan, look_again
from rota.model.room import Room
from rota.model.shape import Line, Shape
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.scheduler.filters import admitted
from rota.scheduler.growing import how_to_get_another, would_help
from rota.scheduler.obstacles import look
from rota.scheduler.order import count_begun, is_impatient
from rota.scheduler.place import Seating, refusing
from rota.scheduler.rows import Plugins

NAME = "unplaceable"
LINES = "lines"  # the key under which all lines are looked at; every other key is a job
# Enum members are slow to look up, and these are needed at every report.
_REFUSED, _ACTIVE, _SCALE = int(AttemptState.REFUSED), JobState.ACTIVE, Unschedulable.SCALE


def reconciler(plugins: Plugins | None = None) -> Reconciler:
    found = Unplaceables(plugins)
    return Reconciler(NAME, "scheduler", found.wakes, found.decide, found.start)


class _Suspect(NamedTuple):
    """A job to look at because another one of its line has changed."""

    job: JobId
    eased: bool  # a node has accepted a task of that other job


class Unplaceables:
    """Everything kept here can be computed again from the view."""

    def __init__(self, plugins: Plugins | None = None) -> None:
        self._plugins = plugins
        self._forget()

    def _forget(self) -> None:
        self._able = _Able()
        self._reasons = _Reasons(self._plugins)
        self._told: dict[JobId, None] = {}  # jobs with a record that holds
        self._scaling: dict[JobId, None] = {}  # jobs that ask for nodes when they wait
        self._asks_from_ms: dict[JobId, int] = {}  # those that wait and have not asked: when they do
        self._lines: deque[Line] = deque()  # to be looked at
        self._suspects: deque[_Suspect] = deque()
        self._suspected: dict[Line, None] = {}  # lines whose jobs are among them
        self._refused: dict[Line, None] = {}  # lines of jobs that a node has refused since the last look
        self._has_new_suspects = False  # of a job's own key: LINES does not know of them
        self._doors = -1  # of the room when all lines were last looked at
        self._changes_read = -1  # position in the log of lines that jobs joined; -1: nothing is read yet
        self._passed_ms = -UNPLACEABLE_PAUSE_MS

    @property
    def wakes(self) -> Wakes:
        return {
            JobStatus: self._after_a_step,
            JobSpec: self._after_a_spec,
            TaskBlock: lambda block: (block.job,) if block.job in self._scaling else (),
            JobCluster: lambda record: (record.id,) if record.moved else (),
            StatusBlock: self._after_a_report,
            Unplaceable: self._after_a_change,
            **dict.fromkeys((NodeSpec, NodeStatus, NodeWish), lambda _: (LINES,)),
            **dict.fromkeys((Cluster, ClusterWish), self._after_a_cluster_changed),
        }

    def start(self, view: View) -> Iterable[str]:
        self._forget()
        for name, job in view.jobs.items():
            if job.status is None or not job.status.ended:
                self._told |= {} if _told(job) is Cause.NONE else {name: None}
                self._scaling |= {name: None} if job.spec.when_unschedulable is _SCALE else {}
        return (LINES, *self._scaling)

    def decide(self, view: View, key: str, now: Instant) -> Plan:
        if view.is_short:  # of disk space: what is left is for the ends of what runs
            return look_again(now.ms + UNPLACEABLE_LOOK_MS)
        if key == LINES:
            return self._look_at_lines(view, now)
        job = view.jobs.get(JobId(key))
        if job is None:
            return NOTHING
        found = self._find(view, job, now)
        if view.refused_by(job.spec.errand):
            self._refused |= dict.fromkeys(_lines_like(view, job))
        if found is None:
            at_ms = self._asks_from_ms.get(job.spec.id)
            return NOTHING if at_ms is None else look_again(at_ms)
        self._suspect_others(view, job, found, now)
        return self._plan(view, [found])

    # ---- what wakes

    def _after_a_step(self, status: JobStatus) -> Iterable[str]:
        if status.ended:
            self._told.pop(status.id, None)
            self._scaling.pop(status.id, None)
            self._asks_from_ms.pop(status.id, None)
        return (status.id,) if status.state is _ACTIVE else ()

    def _after_a_spec(self, spec: JobSpec) -> Iterable[str]:
        if spec.when_unschedulable is _SCALE:
            self._scaling[spec.id] = None
        return (spec.id,) if spec.version > 1 else ()

    def _after_a_report(self, block: StatusBlock) -> Iterable[str]:
        return (block.job,) if block.job in self._told or _REFUSED in block.state else ()

    def _after_a_change(self, record: Unplaceable) -> Iterable[str]:
        self._asks_from_ms.pop(record.id, None)
        if record.cause is Cause.NONE:
            self._told.pop(record.id, None)
        else:
            self._told[record.id] = None
        is_new, self._has_new_suspects = self._has_new_suspects, False
        return (LINES,) if is_new else ()

    def _after_a_cluster_changed(self, record: Cluster | ClusterWish) -> Iterable[str]:
        del record
        self._doors = -1  # it may make other nodes than before
        return (LINES,)

    # ---- all lines, in slices

    def _look_at_lines(self, view: View, now: Instant) -> Plan:
        if self._doors != view.room.doors and not self._lines:
            if now.ms < self._passed_ms + UNPLACEABLE_PAUSE_MS:
                return look_again(self._passed_ms + UNPLACEABLE_PAUSE_MS)
            self._doors, self._passed_ms = view.room.doors, now.ms
            self._lines.extend(line for line, _ in view.waiting())
        self._read_changes(view)
        self._read_refusals(view)
        for _ in range(min(len(self._lines), UNPLACEABLE_LINES_A_LOOK)):
            self._look_at_line(view, self._lines.popleft(), now)
        asking = [job for job, at_ms in self._asks_from_ms.items() if at_ms <= now.ms]
        self._suspects.extend(_Suspect(job, eased=False) for job in asking)
        found: dict[JobId, Unplaceable] = {}  # a job may be suspected for several reasons
        for _ in range(min(len(self._suspects), UNPLACEABLE_JOBS_A_LOOK)):
            suspect = self._suspects.popleft()
            job = view.jobs.get(suspect.job)
            record = None if job is None else self._find(view, job, now, eased=suspect.eased)
            if record is not None:
                found[record.id] = record
        if not self._suspects:
            self._suspected.clear()
        is_more = bool(self._lines or self._suspects)
        next_ms = now.ms + (1 if is_more else UNPLACEABLE_LOOK_MS)
        later = (at_ms for at_ms in self._asks_from_ms.values() if at_ms > now.ms)
        return self._plan(view, list(found.values())).but(wake_at_ms=min(later, default=next_ms))

    def _read_changes(self, view: View) -> None:
        """Suspect jobs that have joined a line again: no key of theirs is woken when a task pends again.

        A job that was never placed was looked at when it became active.
        """
        log, read = view.line_changes, self._changes_read
        changes, self._changes_read = log.since(read) if read >= 0 else [], log.position
        if changes is None:  # too many were missed
            self._lines.extend(line for line, _ in view.waiting())
            return
        joined = dict.fromkeys(JobId(str(one.joined[2])) for one in changes if one.joined is not None)
        again = [job for job in joined if job in view.jobs and view.jobs[job].attempts]
        self._suspects.extend(_Suspect(job, eased=False) for job in again if view.jobs[job].in_line)

    def _read_refusals(self, view: View) -> None:
        """Suspect every job of a refused line that is not known to be refused.

        A node refuses all that wait in one line alike, but only one of them is offered to it. Another may
        have joined the line while earlier refusals had lapsed.
        """
        for line in self._refused:
            jobs = (JobId(str(turn[2])) for turn in view.line(line))
            unlike = [job for job in jobs if _told(view.jobs[job]) is not Cause.REFUSED]
            self._suspects.extend(_Suspect(job, eased=False) for job in unlike)
        self._refused.clear()

    def _look_at_line(self, view: View, line: Line, now: Instant) -> None:
        turns = view.line(line)
        if turns and self._find(view, view.jobs[JobId(str(turns[0][2]))], now) is not None:
            self._suspects.extend(_Suspect(JobId(str(turn[2])), eased=False) for turn in turns)

    def _suspect_others(self, view: View, job: JobView, found: Unplaceable, now: Instant) -> None:
        """Jobs that wait for the same are to be looked at too, unless the first of them is up to date.

        Without that condition each job that joins a line would cost a look at all that are in it.
        """
        eased = found.cause is Cause.NONE
        for line in _lines_of(job):
            turns = () if line in self._suspected else view.line(line)
            names = (JobId(str(turn[2])) for turn in turns[:2])
            other = next((name for name in names if name != job.spec.id), None)
            if other is None or self._find(view, view.jobs[other], now, eased=eased) is None:
                continue
            self._suspected[line] = None
            self._suspects.extend(_Suspect(JobId(str(turn[2])), eased) for turn in turns)
            self._has_new_suspects = True

    # ---- one job

    def _find(self, view: View, job: JobView, now: Instant, *, eased: bool = False) -> Unplaceable | None:
        """The record to write; None: the one there is, or none, is right."""
        spec, told = job.spec, _told(job)
        if job.status is None or job.status.state is not _ACTIVE or spec.kind is Kind.SYSTEM:
            self._asks_from_ms.pop(spec.id, None)
            return None
        record = job.unplaceable
        if record is not None and told is not Cause.NONE and count_begun(job) > record.begun:
            return Unplaceable(spec.id)
        if job.in_line is None or is_impatient(
            job
        ):  # offered, paused, at its limit; or rejected by the round
            self._asks_from_ms.pop(spec.id, None)
            return None
        cause = self._cause(view, job, now)
        if cause is Cause.NONE and spec.when_unschedulable is _SCALE:
            cause = self._waits(spec.id, told, now)
        else:
            self._asks_from_ms.pop(spec.id, None)
        is_kept = told is Cause.REFUSED and cause is Cause.NONE and not eased
        if cause is told or is_kept:
            return None
        reason = "" if cause is Cause.NONE else self._reasons.of(view, job, cause, now)
        return Unplaceable(spec.id, cause, reason, count_begun(job))

    def _waits(self, job: JobId, told: Cause, now: Instant) -> Cause:
        """A job that asks for nodes does so when it has waited a little: the next round may place it."""
        if told is Cause.WAITS:
            return told
        from_ms = self._asks_from_ms.setdefault(job, now.ms + ASK_FOR_NODE_MS)
        return Cause.NONE if now.ms < from_ms else Cause.WAITS

    def _cause(self, view: View, job: JobView, now: Instant) -> Cause:
        room, spec = view.room, job.spec
        able = self._able.nodes(room, spec.shape)
        if not able.any() or (spec.gang and _copies(room, spec.shape, able) < spec.size):
            is_known = _told(job) is Cause.NEVER
            return Cause.NEVER if is_known or _is_final(view, spec) else Cause.NONE
        refused = refusing(view, job, now)
        if not able[refused].any():
            return Cause.NONE
        others = able & room.open[: room.size]
        others[refused] = False
        return Cause.NONE if others.any() else Cause.REFUSED

    def _plan(self, view: View, records: list[Unplaceable]) -> Plan:
        events = [event for record in records for event in _events(view, record)]
        return Plan(tuple(records), events=tuple(events), why="; ".join(event.why for event in events))


class _Able:
    """Which nodes could run a task of a shape, were they empty and open; kept while no node changes."""

    def __init__(self) -> None:
        self._version = -1  # Room.doors
        self._known: dict[Shape, Array] = {}

    def nodes(self, room: Room, shape: Shape) -> Array:
        if room.doors != self._version or len(self._known) >= ROWS_KEPT:
            self._version, self._known = room.doors, {}
        able = self._known.get(shape)
        if able is None or able.size != room.size:
            able = admitted(room, shape) & _has_called(room)
            for resource, amount in shape.needs:
                row = room.rows.get(resource)
                if amount:
                    able &= row is not None and room.capacity[row, : room.size] >= amount
            self._known[shape] = able
        return able


class _Reasons:
    """Why no node can take a job, in words. Jobs that wait for the same have the same reason."""

    def __init__(self, plugins: Plugins | None) -> None:
        self._plugins = plugins
        self._known: dict[tuple[object, ...], str] = {}

    def of(self, view: View, job: JobView, cause: Cause, now: Instant) -> str:
        refused = tuple(view.refused_by(job.spec.errand).items())
        key = (job.spec.errand, job.spec.size, cause, view.room.doors, refused)
        if key not in self._known or cause is Cause.WAITS:  # that changes with what is free
            if len(self._known) >= ROWS_KEPT:
                self._known.clear()
            self._known[key] = self._find(view, job, cause, now)
        return self._known[key]

    def _find(self, view: View, job: JobView, cause: Cause, now: Instant) -> str:
        obstacles = look(view, Seating(view, self._plugins), job, None, now).obstacles
        if cause is not Cause.WAITS:
            obstacles = [one for one in obstacles if one.lasting or one.reason.kind == "refused"]
        reasons = sorted((one.reason for one in obstacles), key=lambda reason: -reason.count)
        if not reasons and job.spec.gang:
            return f"all nodes together hold fewer than its {job.spec.size} tasks, which start at once"
        return "; ".join(reason.text for reason in reasons) or "no node has room for it"


def _lines_of(job: JobView) -> Iterable[Line]:
    """Lines of jobs that wait for the same, wherever this one is."""
    lines = (job.in_line, job.spec.errand, job.spec.line)
    return dict.fromkeys(line for line in lines if line is not None)


def _lines_like(view: View, job: JobView) -> Iterable[Line]:
    """The lines whose jobs a node refuses like this one. Those of gangs differ by the tasks left to start."""
    alike = (job.spec.errand, job.spec.line)
    if not job.spec.gang:
        return alike
    gangs = (line for line, _ in view.waiting() if line.gang and line.shape == job.spec.shape)
    return (line for line in gangs if msgspec.structs.replace(line, gang=0) in alike)


def _told(job: JobView) -> Cause:
    return Cause.NONE if job.unplaceable is None else job.unplaceable.cause


def _has_called(room: Room) -> Array:
    """Nodes that have said what they have."""
    called: Array = np.logical_or.reduce(room.capacity[:, : room.size] > 0, axis=0)
    return called


def _copies(room: Room, shape: Shape, able: Array) -> int:
    """How many tasks of a shape all these nodes together hold when they are empty."""
    most = np.where(able, NODE_TASKS_MAX, 0)
    for resource, amount in shape.needs:
        if amount:
            most = np.minimum(most, room.capacity[room.rows[resource], : room.size] // amount)
    return int(most.sum())


def _is_final(view: View, spec: JobSpec) -> bool:
    """Some node of its cluster has called, and no other one comes by itself."""
    outside = view.room.outside(spec.home)
    called = _has_called(view.room)
    if not (called if outside is None else called & ~outside).any():
        return False
    return how_to_get_another(view, spec) is not None or not would_help(view, spec)


def _events(view: View, record: Unplaceable) -> Iterable[Event]:
    job = view.jobs[record.id]
    match record.cause:
        case Cause.NONE:
            yield Event("placement.possible", f"job {record.id} can be placed again", job=record.id)
            return
        case Cause.NEVER | Cause.REFUSED:
            why = f"job {record.id} cannot be placed: {record.reason}"
            yield Event("placement.impossible", why, job=record.id, state=record.cause.value)
        case Cause.WAITS:
            pass
    if job.spec.when_unschedulable is _SCALE and would_help(view, job.spec):
        command = how_to_get_another(view, job.spec)
        how = "" if command is None else f" ({command})"
        why = f"job {record.id} asks for a node in cluster {job.spec.home}{how}: {record.reason}"
        yield Event("placement.needs_node", why, job=record.id, cluster=job.spec.home)
