"""A job, not submitted, on a copy of the cluster, perhaps with other nodes -> what would become of it."""

from collections.abc import Iterator

import numpy as np

from rota.engine.shadow import Shadow, Taken
from rota.model.attempt import EVICTED, AttemptBlock
from rota.model.cluster import DEFAULT
from rota.model.columns import Ranges, ints
from rota.model.ids import Key, NodeId
from rota.model.job import JobCluster, JobSpec, JobStatus, Kind, assessed
from rota.model.lifecycle import ClusterState, JobState, NodeState
from rota.model.limits import BLOCK_TASKS
from rota.model.node import Link, NodeSpec, NodeStatus
from rota.model.outlook import Evicted, Grown, Outcome, Outlook, Place, WhatIf
from rota.model.pins import PinBlock
from rota.model.plan import Instant, Plan
from rota.model.view import JobView
from rota.model.why import Why
from rota.scheduler.ahead import is_too_late
from rota.scheduler.explain import Study, in_words, study
from rota.scheduler.growth import foresee_growth
from rota.scheduler.plan import ROUND, Scheduler
from rota.scheduler.round import Settings
from rota.scheduler.survey import Surveyor
from rota.scheduler.words import few, tasks


def foresee(
    taken: Taken, spec: JobSpec, what_if: WhatIf, now: Instant, settings: Settings | None = None
) -> Outlook:
    settings = settings or Settings()
    found = outlook(Shadow.of(taken), spec, what_if, now, settings)
    is_hopeless = found.outcome is Outcome.NEVER and found.why is not None
    if found.starts == spec.count or not (what_if.scale or is_hopeless):
        return found
    grows = _grown(taken, spec, now, settings, may_choose=found.starts == 0)
    return found if grows is None else found.grown(grows)


def _grown(
    taken: Taken, spec: JobSpec, now: Instant, settings: Settings, *, may_choose: bool
) -> Grown | None:
    """The first cluster that would grow for it; where some of it starts, only that one."""
    clusters = Shadow.of(taken)
    home = None if may_choose else _likeliest(clusters, spec)
    for name, wish in clusters.cluster_wishes.items():
        if home not in (None, name):
            continue
        cluster = clusters.clusters.get(name)
        if wish.by_hand or wish.nodes is not None or cluster is None or cluster.state is ClusterState.FAILED:
            continue
        if wish.drain or spec.cluster not in (None, name, cluster.like):
            continue
        shadow = Shadow.of(taken)
        for record in (spec, JobCluster(spec.id, name), JobStatus(spec.id, JobState.ACTIVE)):
            shadow.apply(record)
        machines = [one for one in shadow.machines.values() if one.cluster == name]
        has, coming = sum(1 + one.extra for one in machines), sum(one.comes for one in machines)
        growth = foresee_growth(shadow, wish, coming, wish.max_nodes - has, now, settings=settings)
        if growth.nodes:
            return Grown(name, growth.nodes, has, wish.max_nodes, growth.waiting, growth.starts)
    return None


def outlook(shadow: Shadow, spec: JobSpec, what_if: WhatIf, now: Instant, settings: Settings) -> Outlook:
    """A round for who waits already, so that the scheduler knows of them; then one with this job as well."""
    scheduler = Scheduler(settings)
    _apply(shadow, scheduler.decide(shadow, ROUND, now))
    new = _change_nodes(shadow, what_if)
    home = spec.cluster or _likeliest(shadow, spec)
    for record in (spec, JobCluster(spec.id, home), JobStatus(spec.id, JobState.ACTIVE)):
        shadow.apply(record)
    job = shadow.jobs[spec.id]
    if is_too_late(job, now):
        return Outlook(Outcome.NEVER, "would never start: it can no longer be over by its deadline")
    plan = scheduler.decide(shadow, ROUND, now)
    if any(isinstance(record, PinBlock) for record in plan.puts):  # its tasks, which are placed next
        _apply(shadow, plan)
        plan = scheduler.decide(shadow, ROUND, now)
    made_room = [shadow.room.ids[slot] for slot in scheduler.room_made_for(spec.id)]
    evicts = tuple(_evicted(shadow, plan, made_room))
    _apply(shadow, plan)
    if job.verdict is not None:
        return Outlook(Outcome.NEVER, f"would be rejected: {job.verdict.reason}")
    places = tuple(_places(shadow, job, made_room, new))
    if spec.kind is Kind.SYSTEM:
        return _on_every_node(job, places, evicts)
    known = study(shadow, job, now, settings.plugins, backfill=settings.backfill)
    if not places:
        return _waiting(shadow, job, known, now)
    starts_all = sum(place.tasks for place in places) == spec.count
    left = None if starts_all else in_words(shadow, job, known, now)
    return _starting(places, evicts, spec.count, left)


def _likeliest(shadow: Shadow, spec: JobSpec) -> str:
    """The cluster with most room for it, the default one where none has any."""
    survey = Surveyor()
    names = (DEFAULT, *shadow.clusters)
    fits = {name: survey.look(shadow, assessed(spec), name) for name in names}
    if spec.observed and not any(fit.able for fit in fits.values()):
        fits = {name: survey.look(shadow, spec, name) for name in names}
    return max(fits, key=lambda name: (min(fits[name].free, spec.count), fits[name].able))


def _on_every_node(job: JobView, places: tuple[Place, ...], evicts: tuple[Evicted, ...]) -> Outlook:
    if not job.pinned:
        return Outlook(Outcome.WAIT, "would wait: no open node fits its conditions")
    told = f"{len(places)} of {len(job.pinned)} fitting nodes"
    if not places:
        return Outlook(Outcome.WAIT, f"would wait: {told} have room")
    nodes = few([place.node for place in places])
    return Outlook(Outcome.NOW, f"would start on {told}: {nodes}", len(places), places, evicts)


def _apply(shadow: Shadow, plan: Plan) -> None:
    for record in plan.puts:
        shadow.apply(record)


def _change_nodes(shadow: Shadow, what_if: WhatIf) -> list[NodeId]:
    """Nodes go with all they hold; new ones come idle, and are called new-1 and so on."""
    taken = {node.spec.name for node in shadow.nodes.values()}
    for gone in what_if.without:
        shadow.forget(Key(f"node/{gone}/spec"))
    new: list[NodeId] = []
    number = 0
    for kind in what_if.add_nodes:
        for _ in range(kind.count):
            number += 1
            while f"new-{number}" in taken or NodeId(f"new-{number}") in shadow.nodes:
                number += 1
            node = NodeId(f"new-{number}")
            shadow.apply(NodeSpec(node, str(node), labels=kind.labels))
            shadow.apply(NodeStatus(node, NodeState.READY, str(node), "", "", kind.capacity))
            shadow.connect(node, Link.UP)
            new.append(node)
    return new


def _places(shadow: Shadow, job: JobView, made_room: list[NodeId], new: list[NodeId]) -> Iterator[Place]:
    """Where its tasks went, and where others are giving way to some; the fullest first."""
    there = dict(job.on)
    for node in made_room:
        there[node] = there.get(node, 0) + 1
    for node in sorted(there, key=lambda one: (-there[one], shadow.room.slot[one])):
        yield Place(shadow.nodes[node].spec.name, there[node], node in new)


def _evicted(shadow: Shadow, plan: Plan, made_room: list[NodeId]) -> Iterator[Evicted]:
    """Of all that have to give way in this round, those on the nodes where room is made for it."""
    for block in plan.puts:
        if not isinstance(block, AttemptBlock):
            continue
        before = shadow.jobs[block.job].attempts.get(block.block)
        flags = np.frombuffer(block.flags, np.uint8) & EVICTED
        known = 0 if before is None else np.frombuffer(before.flags, np.uint8) & EVICTED
        positions = np.nonzero(flags & ~np.uint8(known))[0].tolist()
        on = ints(block, "node")
        gang = shadow.jobs[block.job].spec.gang
        here = [at for at in positions if block.nodes[on[at]] in made_room]
        going = positions if gang and here else here
        if going:
            ranges = Ranges([block.block * BLOCK_TASKS + at for at in going])
            yield Evicted(block.job, shadow.jobs[block.job].spec.namespace, tuple(ranges.pairs))


def _starting(
    places: tuple[Place, ...], evicts: tuple[Evicted, ...], count: int, left: Why | None
) -> Outlook:
    starts = sum(place.tasks for place in places)
    where = few([place.node if count == 1 else f"{place.node} ({place.tasks})" for place in places])
    head = "would start" if count == 1 else f"{starts} of {count} tasks would start"
    rest = f"; {left.sentence}" if left is not None else ""
    sentence = f"{head} {_when(evicts)} on {where}{rest}"
    return Outlook(Outcome.NOW, sentence, starts, places, evicts, left)


def _when(evicts: tuple[Evicted, ...]) -> str:
    going = sum(last - first + 1 for one in evicts for first, last in one.indices)
    if not going:
        return "now"
    return f"as soon as {tasks(going)} of lower priority {'has' if going == 1 else 'have'} given way"


def _waiting(shadow: Shadow, job: JobView, known: Study, now: Instant) -> Outlook:
    answer = in_words(shadow, job, known, now)
    reason = answer.sentence.partition(": ")[2]
    if _hopeless(job, known):
        return Outlook(Outcome.NEVER, f"would never start: {reason}", why=answer)
    return Outlook(Outcome.WAIT, f"would wait: {reason}", why=answer)


def _hopeless(job: JobView, known: Study) -> bool:
    """Not even on empty nodes; of a gang, not all of it."""
    sight, board = known.sight, known.seating.board
    able = ~sight.lasting
    if known.own.hopeless or not able.any():
        return True
    most = int(board.slots(job.spec.shape)[sight.slots[able]].sum())
    return job.spec.gang and most < job.spec.count
