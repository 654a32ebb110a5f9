"""A system job + a deleted node -> the end of the task that was pinned to it."""

from collections.abc import Iterable

from rota.engine.reconciler import Reconciler, Wakes
from rota.model.cluster import Machine
from rota.model.columns import Draft, Ranges
from rota.model.job import JobStatus
from rota.model.lifecycle import TASK, JobState, TaskEvent, TaskState, step
from rota.model.limits import BLOCK_TASKS
from rota.model.node import NodeIntent
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan, Record
from rota.model.task import TaskBlock
from rota.model.view import JobView, View
from rota.rules.phases import Phase
from rota.rules.reconciler_names import ReconcilerName

_NODES_KEY = "nodes"
_REASON = "its node was deleted"


WAKES: Wakes = {
    NodeIntent: lambda _: (_NODES_KEY,),  # the last record written when a node is deleted
    Machine: lambda record: (_NODES_KEY,) if record.is_being_removed else (),
    # A task may become pending again after its node was deleted: its job resumes, or its loss is resolved.
    JobStatus: lambda status: (status.id,) if status.state is JobState.ACTIVE else (),
    TaskBlock: lambda block: (block.job,),
}


def start(view: View) -> Iterable[str]:
    return (_NODES_KEY,) if view.system_jobs else ()


def decide(view: View, key: str, now: Instant) -> Plan:
    del now
    puts: list[Record] = []
    events: list[EventRecord] = []
    for job_id in view.system_jobs:
        if key not in (_NODES_KEY, job_id):
            continue
        job = view.jobs[job_id]
        deleted = [
            index
            for node, index in job.task_by_node.items()
            # A node that is only lost may return and keeps its task. A deleted one gets a
            # new id if it ever joins again.
            if node not in view.nodes and _is_pending(job, index)
        ]
        if deleted:
            # Only pending tasks end here: a live attempt of the deleted node has to end first.
            puts += _ended_blocks(job, deleted)
            ranges = Ranges(deleted)
            why = f"task{'s' if deleted[1:] else ''} {ranges} of job {job_id} ended: {_REASON}"
            events.append(EventRecord("task.ended", why, job=job_id, indices=tuple(ranges.pairs)))
    if not puts:
        return NO_CHANGE
    return Plan(tuple(puts), events=tuple(events), why="; ".join(event.why for event in events))


def _is_pending(job: JobView, index: int) -> bool:
    block, position = divmod(index, BLOCK_TASKS)
    return block not in job.phases or job.phases[block][position] == Phase.PENDING


def _ended_blocks(job: JobView, deleted: list[int]) -> Iterable[TaskBlock]:
    by_block: dict[int, list[int]] = {}
    for index in deleted:
        by_block.setdefault(index // BLOCK_TASKS, []).append(index % BLOCK_TASKS)
    for block, positions in by_block.items():
        task = job.tasks.get(block) or TaskBlock.new(job.spec.id, block, job.spec.block_size(block))
        draft = Draft(task)
        draft["state"][positions] = step(TASK, TaskState.WANTED, TaskEvent.STOPPED)
        yield draft.done(reasons=task.reasons | dict.fromkeys(positions, _REASON))


RECONCILER = Reconciler(ReconcilerName.SYSTEM_JOBS, "controllers", WAKES, decide, start)
