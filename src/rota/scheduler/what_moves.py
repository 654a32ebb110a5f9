"""Nodes to be drained, on a copy of the cluster -> where their work would go, and what of it would wait."""

from collections.abc import Iterator

from rota.engine.shadow import Shadow, Taken
from rota.model.attempt import StatusBlock
from rota.model.columns import Draft, Ranges, column
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec, Kind, Recovery
from rota.model.lifecycle import AttemptState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Eligibility, NodeWish
from rota.model.outlook import Displaced, Fate, Place
from rota.model.plan import Instant
from rota.model.view import JobView
from rota.scheduler.drain import moves
from rota.scheduler.explain import in_words, study
from rota.scheduler.plan import ROUND, Scheduler
from rota.scheduler.preempt import live_tasks
from rota.scheduler.round import Settings

_ROUNDS_MAX = 10  # in each many tasks find a node; what none of them places waits


def displace(
    taken: Taken,
    nodes: tuple[NodeId, ...],
    now: Instant,
    *,
    everything: bool,
    settings: Settings | None = None,
) -> tuple[Displaced, ...]:
    """The scheduler's own rounds, once all that moves is stopped at one moment."""
    shadow, settings = Shadow.of(taken), settings or Settings()
    scheduler = Scheduler(settings)
    _rounds(scheduler, shadow, now)  # who waits already does not wait because of this
    there = {job: _indices(shadow, job, nodes) for job in _jobs(shadow, nodes)}
    for node in nodes:
        wish = shadow.nodes[node].wish or NodeWish(node)
        shadow.apply(NodeWish(node, Eligibility.DRAINING, wish.taints))
    going = let_go(shadow, nodes)
    _rounds(scheduler, shadow, now)
    moved = [_moved(shadow, shadow.jobs[job], indices, settings, now) for job, indices in going.items()]
    others = [
        Displaced(
            job,
            shadow.jobs[job].spec.namespace,
            _fate(shadow.jobs[job].spec, everything=everything),
            tuple(Ranges(indices).pairs),
        )
        for job, indices in there.items()
        if job not in going
    ]
    return (*moved, *others)


def _fate(spec: JobSpec, *, everything: bool) -> Fate:
    """What becomes of tasks that the scheduler does not move."""
    if spec.kind is Kind.SYSTEM:
        return Fate.ENDS
    if not spec.movable:
        return Fate.ENDS if everything else Fate.STAYS
    return Fate.ASKS if spec.recovery is Recovery.CONTROLLER else Fate.ENDS


def let_go(shadow: Shadow, nodes: tuple[NodeId, ...]) -> dict[JobId, list[int]]:
    """What moves of the work on these nodes, which take nothing new: from now on it waits for others.

    Work whose recovery owner is not the scheduler is not placed again without that owner's word.
    """
    going = {
        job: _indices(shadow, job, nodes)
        for job in _jobs(shadow, nodes)
        if moves(shadow.jobs[job], everything=False) and shadow.jobs[job].spec.recovery is Recovery.SCHEDULER
    }
    for job, indices in going.items():
        for status in _stopped(shadow.jobs[job], indices):
            shadow.apply(status)
    return going


def _rounds(scheduler: Scheduler, shadow: Shadow, now: Instant) -> None:
    for _ in range(_ROUNDS_MAX):
        plan = scheduler.decide(shadow, ROUND, now)
        for record in plan.puts:
            shadow.apply(record)
        if not plan.puts:
            return


def _jobs(shadow: Shadow, nodes: tuple[NodeId, ...]) -> list[JobId]:
    found = dict.fromkeys(job for node in nodes for job, _ in shadow.nodes[node].assigned)
    return sorted(found, key=int)


def _indices(shadow: Shadow, job_id: JobId, nodes: tuple[NodeId, ...]) -> list[int]:
    """Of a gang all: without one of its tasks the others are of no use."""
    job = shadow.jobs[job_id]
    if job.spec.gang and moves(job, everything=False):
        return [index for _, index in live_tasks(job)]
    return sorted(index for node in nodes for owner, index in shadow.nodes[node].assigned if owner == job_id)


def _stopped(job: JobView, indices: list[int]) -> Iterator[StatusBlock]:
    """As if their offers had been withdrawn: the same tries wait for a node again."""
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


def _moved(shadow: Shadow, job: JobView, indices: list[int], settings: Settings, now: Instant) -> Displaced:
    there: dict[NodeId, int] = {}
    for node in job.on:
        assigned = shadow.nodes[node].assigned
        count = sum((job.spec.id, index) in assigned for index in indices)
        if count:
            there[node] = count
    fullest = sorted(there, key=lambda one: (-there[one], shadow.room.slot[one]))
    places = tuple(Place(shadow.nodes[node].spec.name, there[node]) for node in fullest)
    waits = len(indices) - sum(there.values())
    why = None
    if waits:
        known = study(shadow, job, now, settings.plugins, backfill=settings.backfill)
        why = in_words(shadow, job, known, now)
    pairs = tuple(Ranges(indices).pairs)
    return Displaced(job.spec.id, job.spec.namespace, Fate.MOVES, pairs, places, waits, why)
