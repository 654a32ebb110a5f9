"""What-if: nodes to drain, on a copy of the mirror -> where their tasks would go, and which would wait."""

from collections.abc import Iterator

from rota.engine.state.what_if import MirrorCopy, WhatIfMirror
from rota.model.attempt import StatusBlock
from rota.model.columns import Draft, Ranges, column
from rota.model.ids import JobId, NodeId
from rota.model.job import JobKind, JobSpec, Recovery
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Eligibility, NodeIntent
from rota.model.outlook import DisplacedTasks, DrainOutcome, PlannedPlacement
from rota.model.plan import Instant
from rota.model.view import JobView
from rota.rules.reconciler_names import ROUND_KEY
from rota.scheduler.explain.why import analyse_wait, describe_wait
from rota.scheduler.plan import Scheduler
from rota.scheduler.policy.drain import may_be_moved
from rota.scheduler.policy.preempt import live_tasks
from rota.scheduler.round import SchedulerSettings

_ROUNDS_MAX = 10  # each places many tasks; what none of them places would wait


def preview_drain(
    copied: MirrorCopy,
    nodes: tuple[NodeId, ...],
    now: Instant,
    *,
    everything: bool,
    settings: SchedulerSettings | None = None,
) -> tuple[DisplacedTasks, ...]:
    """Stop all movable tasks of the nodes at once, then run the real scheduler."""
    mirror, settings = WhatIfMirror.from_copy(copied), settings or SchedulerSettings()
    scheduler = Scheduler(settings)
    _run_rounds(scheduler, mirror, now)  # jobs that are pending already are not pending because of the drain
    on_nodes = {job: _task_indices(mirror, job, nodes) for job in _jobs_on(mirror, nodes)}
    for node in nodes:
        intent = mirror.nodes[node].intent or NodeIntent(node)
        mirror.apply(NodeIntent(node, Eligibility.DRAINING, intent.taints))
    moving = withdraw_movable(mirror, nodes)
    _run_rounds(scheduler, mirror, now)
    moved = [
        _moved_tasks(mirror, mirror.jobs[job], indices, settings, now) for job, indices in moving.items()
    ]
    others = [
        DisplacedTasks(
            job,
            mirror.jobs[job].spec.namespace,
            _outcome_of(mirror.jobs[job].spec, everything=everything),
            tuple(Ranges(indices).pairs),
        )
        for job, indices in on_nodes.items()
        if job not in moving
    ]
    return (*moved, *others)


def _outcome_of(spec: JobSpec, *, everything: bool) -> DrainOutcome:
    """Outcome for tasks that the scheduler does not move."""
    if spec.kind is JobKind.SYSTEM:
        return DrainOutcome.ENDS
    if not spec.movable:
        return DrainOutcome.ENDS if everything else DrainOutcome.STAYS
    return DrainOutcome.CONTROLLER_DECIDES if spec.recovery is Recovery.CONTROLLER else DrainOutcome.ENDS


def withdraw_movable(mirror: WhatIfMirror, nodes: tuple[NodeId, ...]) -> dict[JobId, list[int]]:
    """Withdraw the movable tasks of these nodes, so that they are pending; returns them by job.

    Tasks whose recovery is up to a controller are left out: they are not placed again without its decision.
    """
    moving = {
        job: _task_indices(mirror, job, nodes)
        for job in _jobs_on(mirror, nodes)
        if may_be_moved(mirror.jobs[job], everything=False)
        and mirror.jobs[job].spec.recovery is Recovery.SCHEDULER
    }
    for job, indices in moving.items():
        for status in _withdrawn_blocks(mirror.jobs[job], indices):
            mirror.apply(status)
    return moving


def _run_rounds(scheduler: Scheduler, mirror: WhatIfMirror, now: Instant) -> None:
    for _ in range(_ROUNDS_MAX):
        plan = scheduler.decide(mirror, ROUND_KEY, now)
        for record in plan.puts:
            mirror.apply(record)
        if not plan.puts:
            return


def _jobs_on(mirror: WhatIfMirror, nodes: tuple[NodeId, ...]) -> list[JobId]:
    found = dict.fromkeys(job for node in nodes for job, _ in mirror.nodes[node].assigned)
    return sorted(found, key=int)


def _task_indices(mirror: WhatIfMirror, job_id: JobId, nodes: tuple[NodeId, ...]) -> list[int]:
    """Tasks of the job on these nodes; all tasks of a gang, since it moves as a whole."""
    job = mirror.jobs[job_id]
    if job.spec.gang and may_be_moved(job, everything=False):
        return [index for _, index in live_tasks(job)]
    return sorted(index for node in nodes for owner, index in mirror.nodes[node].assigned if owner == job_id)


def _withdrawn_blocks(job: JobView, indices: list[int]) -> Iterator[StatusBlock]:
    """Status blocks as if the offers had been withdrawn: the tasks are pending with the same retry count."""
    by_block: dict[int, list[int]] = {}
    for index in indices:
        block, position = divmod(index, BLOCK_TASKS)
        by_block.setdefault(block, []).append(position)
    for block, positions in by_block.items():
        status = job.statuses.get(block) or StatusBlock.new(job.spec.id, block, job.spec.block_size(block))
        draft = Draft(status)
        draft["number"][positions] = column(job.attempts[block], "number")[positions]
        draft["state"][positions] = int(AttemptState.WITHDRAWN)
        yield draft.done()


def _moved_tasks(
    mirror: WhatIfMirror, job: JobView, indices: list[int], settings: SchedulerSettings, now: Instant
) -> DisplacedTasks:
    tasks: dict[NodeId, int] = {}
    for node in job.live_by_node:
        assigned = mirror.nodes[node].assigned
        count = sum((job.spec.id, index) in assigned for index in indices)
        if count:
            tasks[node] = count
    fullest = sorted(tasks, key=lambda node: (-tasks[node], mirror.node_table.slot[node]))
    places = tuple(PlannedPlacement(mirror.nodes[node].spec.name, tasks[node]) for node in fullest)
    pending = len(indices) - sum(tasks.values())
    why = None
    if pending:
        analysis = analyse_wait(mirror, job, now, settings.plugins, backfill=settings.backfill)
        why = describe_wait(mirror, job, analysis, now)
    pairs = tuple(Ranges(indices).pairs)
    return DisplacedTasks(job.spec.id, job.spec.namespace, DrainOutcome.MOVES, pairs, places, pending, why)
