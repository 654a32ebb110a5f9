"""Quarantine for poison tasks: held after too many lost nodes or keepers, until released or expired."""

from collections.abc import Iterator

from rota.controllers import keeper_deaths
from rota.controllers.attempt_end import AttemptEnd
from rota.controllers.recovery import BlockRecords
from rota.model.columns import Draft, Ranges, ints
from rota.model.ids import NodeId
from rota.model.lifecycle import TASK, TaskEvent, TaskState, step
from rota.model.limits import BLAME_MS, BLOCK_TASKS, HELD_MS, QUARANTINE_LOST_NODES
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, wake_at
from rota.model.recovery import EndCause
from rota.model.task import TaskBlock
from rota.model.view import JobView, View

_HELD = int(TaskState.HELD)
_DAY_MS = 24 * 3600 * 1000


class Blame:
    """Nodes and keepers that went down lately while tasks of a block ran on them, by position."""

    def __init__(self, view: View, block: BlockRecords, now: Instant) -> None:
        task = block.task
        self.lost_nodes, self.lost_at_ms, self.keeper_deaths = (
            dict(task.downed),
            dict(task.downed_ms),
            dict(task.deaths),
        )
        self.reasons: dict[int, str] = {}  # of tasks that are suspect now
        self._view, self._block, self._now = view, block, now

    def record(self, end: AttemptEnd, position: int) -> AttemptEnd:
        """Record a node or keeper that went down with the task; the last allowed one makes it suspect."""
        match end.cause:
            case EndCause.NODE_DOWN:
                is_suspect = self._record_lost_node(position)
            case EndCause.KEEPER_DIED:
                evaluation = keeper_deaths.evaluate_death(self._view, self._block, position, self._now)
                self.keeper_deaths[position], is_suspect = evaluation.deaths, evaluation.is_suspect
            case _:
                return end
        if is_suspect:
            self.reasons[position] = self._reason(end, position)
        return end._replace(is_suspect=is_suspect)

    def _record_lost_node(self, position: int) -> bool:
        now_ms, attempt = self._now.ms, self._block.attempt
        known, times_ms = self.lost_nodes.get(position, ()), self.lost_at_ms.get(position, ())
        both = zip(known, times_ms, strict=True)
        # Blame lapses: over months a long-running task sees nodes fail that it had no part in.
        lately = {node: at_ms for node, at_ms in both if at_ms > now_ms - BLAME_MS}
        # By node: one that restarts often counts once, or a single bad machine would quarantine its tasks.
        lately[attempt.nodes[ints(attempt, "node")[position]]] = now_ms
        self.lost_nodes[position], self.lost_at_ms[position] = tuple(lately), tuple(lately.values())
        return len(lately) >= QUARANTINE_LOST_NODES

    def _reason(self, end: AttemptEnd, position: int) -> str:
        if end.cause == EndCause.KEEPER_DIED:
            return keeper_deaths.describe_deaths(self._view, self.keeper_deaths[position])
        return describe_lost_nodes(self._view, self.lost_nodes[position])


def describe_lost_nodes(view: View, downed: tuple[NodeId, ...]) -> str:
    names = [view.nodes[node].spec.name if node in view.nodes else node for node in downed]
    return f"{len(names)} nodes went down while it ran on them: {', '.join(names)}"


def held_event(job: JobView, held: list[int], reason: str) -> EventRecord:
    ranges = Ranges(held)
    tasks, are = _tasks(job, held)
    why = f"{tasks} {are} held as suspect: {reason} (rota job release {job.spec.id})"
    return EventRecord("task.held", why, job=job.spec.id, indices=tuple(ranges.pairs), state="held")


def resolve_held(job: JobView, now: Instant) -> Plan:
    """Held tasks of a job: released ones are started again, expired ones have failed."""
    blocks = [_HeldTasks(job, task, now) for task in _held_blocks(job)]
    puts = [block.changed_block() for block in blocks if block.released or block.expired]
    if not puts:
        until_ms = min((block.until_ms for block in blocks if block.until_ms is not None), default=None)
        return NO_CHANGE if until_ms is None else wake_at(until_ms)
    released = [index for block in blocks for index in block.indices(block.released)]
    expired = [index for block in blocks for index in block.indices(block.expired)]
    events = [_event(job, "task.released", released, "released")] if released else []
    events += [_event(job, "task.ended", expired, f"given up: {_describe_timeout()}")] if expired else []
    return Plan(tuple(puts), events=tuple(events), why="; ".join(event.why for event in events))


class _HeldTasks:
    """The held tasks of one block by position: which were released, and which have expired."""

    def __init__(self, job: JobView, task: TaskBlock, now: Instant) -> None:
        until, tries = ints(task, "not_before"), ints(task, "wanted")
        released = {} if job.intent is None else job.intent.release
        held = [at for at, state in enumerate(task.state) if state == _HELD]
        first = task.block * BLOCK_TASKS
        # A release names the try it releases. One that was meant for an earlier hold does not end this one.
        self.released = [at for at in held if released.get(first + at) == tries[at]]
        left = [at for at in held if at not in self.released]
        # Bounded: a job with a held task that no user looks at must not stay unfinished for ever.
        self.expired = [at for at in left if until[at] <= now.ms]
        self.until_ms = min((until[at] for at in left), default=None)
        self._task, self._now = task, now

    def indices(self, positions: list[int]) -> list[int]:
        return [self._task.block * BLOCK_TASKS + at for at in positions]

    def changed_block(self) -> TaskBlock:
        draft, reasons = Draft(self._task), dict(self._task.reasons)
        downed, downed_ms = dict(self._task.downed), dict(self._task.downed_ms)
        deaths, faults = dict(self._task.deaths), dict(self._task.faults)
        for at in self.released:
            draft["state"][at] = step(TASK, TaskState.HELD, TaskEvent.RELEASED)
            draft["not_before"][at] = self._now.ms
            for known in (downed, downed_ms, deaths, faults, reasons):
                known.pop(at, None)  # a released task starts with a clean record
        for at in self.expired:
            draft["state"][at] = step(TASK, TaskState.HELD, TaskEvent.HOLD_EXPIRED)
            reasons[at] = f"{reasons.get(at, 'suspected')}; {_describe_timeout()}"
        return draft.done(reasons=reasons, downed=downed, downed_ms=downed_ms, deaths=deaths, faults=faults)


def _held_blocks(job: JobView) -> Iterator[TaskBlock]:
    return (job.tasks[block] for block in sorted(job.tasks) if _HELD in job.tasks[block].state)


def _event(job: JobView, kind: str, indices: list[int], what: str) -> EventRecord:
    tasks, are = _tasks(job, indices)
    return EventRecord(kind, f"{tasks} {are} {what}", job=job.spec.id, indices=tuple(Ranges(indices).pairs))


def _tasks(job: JobView, indices: list[int]) -> tuple[str, str]:
    s, are = ("s", "are") if len(indices) > 1 else ("", "is")
    return f"task{s} {Ranges(indices)} of job {job.spec.id}", are


def _describe_timeout() -> str:
    return f"held for {HELD_MS // _DAY_MS} days and not released"
