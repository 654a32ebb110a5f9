"""The order to move tasks of a job to another node + the view -> a Plan, or a refusal that says why not."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.actions import AdmitAction, parse_indices
from rota.apiserver.lookup import find_job, find_node
from rota.apiserver.spec import fields
from rota.model.columns import Ranges, ints
from rota.model.errors import Conflict
from rota.model.ids import JobId, NodeId
from rota.model.job import JobIntent, JobKind, MoveOrder
from rota.model.limits import BLOCK_TASKS, MOVES_MAX, NAME_LENGTH_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.shape import RunMode
from rota.model.view import JobView, NodeView, View
from rota.rules.phases import FIRST_END, Phase


class WhyNotMoved(Protocol):
    """The scheduler's answer: why these tasks would find no room there, or None."""

    def __call__(
        self, view: View, job: JobView, leaving: Mapping[int, NodeId], target: NodeId | None, now: Instant
    ) -> str | None: ...


class _LiveAttempt(NamedTuple):
    """The attempt of a task that is under way."""

    attempt: int
    tries: int
    node: NodeId
    phase: Phase


class _MoveRequest(NamedTuple):
    """The tasks that leave their nodes, and the node they go to, where one is named."""

    leaving: dict[int, _LiveAttempt]
    target: NodeView | None


def move_admission(why_not: WhyNotMoved) -> AdmitAction:
    """The admission of moves, with the scheduler's word on where there is room."""

    def move(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
        said = fields.known_fields(body, ("indices", "to"))
        job = find_job(view, ref, caller)
        access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
        target = None if said.get("to") is None else _find_target(view, said["to"])
        _refuse_job(job, target)
        named = _select_tasks(job, parse_indices(said.get("indices"), job), target)
        _refuse_tasks(job, named)
        leaving = {index: one.node for index, one in named.items()}
        problem = why_not(view, job, leaving, None if target is None else target.spec.id, now)
        if problem is not None:
            where = "cannot be moved" if target is None else f"cannot be moved to {target.spec.name}"
            raise Conflict(
                f"{_describe_tasks(job, named)} {where}: {problem}", hint=f"see rota show {job.spec.id}"
            )
        return _write_orders(view, job, _MoveRequest(named, target), caller, now)

    return move


def _find_target(view: View, value: object) -> NodeView:
    return find_node(view, fields.text("to", value, NAME_LENGTH_MAX))


def _refuse_job(job: JobView, target: NodeView | None) -> None:
    spec = job.spec
    if job.status is not None and job.status.ended:
        raise Conflict(f"job {spec.id} has ended: {job.status.state}", hint="nothing of it can be moved")
    if job.intent is not None and job.intent.cancel:
        raise Conflict(f"job {spec.id} is being canceled", hint="nothing of it can be moved")
    if job.intent is not None and job.intent.paused:
        hint = f"resume it first: rota resume {spec.id}"
        raise Conflict(f"job {spec.id} is paused: a task that stops would not start elsewhere", hint=hint)
    if spec.kind is JobKind.SYSTEM:
        hint = "close the node, or change the job's where"
        raise Conflict(f"job {spec.id} is a system job: each of its tasks belongs to one node", hint=hint)
    if spec.gang and target is not None:
        hint = "leave out the target: the gang is placed again without the nodes of these tasks"
        raise Conflict(f"job {spec.id} is a gang: its tasks are placed together", hint=hint)


def _select_tasks(
    job: JobView, indices: list[int] | None, target: NodeView | None
) -> dict[int, _LiveAttempt]:
    """The tasks that are to leave their nodes. Of those named each must be under way."""
    live, hint = _live_attempts(job), f"see rota show {job.spec.id}"
    chosen = live if indices is None else {index: live[index] for index in indices if index in live}
    missing = sorted(set(indices or ()).difference(chosen))
    if missing or not chosen:
        what = f"task {missing[0]}" if missing else "no task"
        raise Conflict(f"{what} of job {job.spec.id} is {'not ' if missing else ''}on a node", hint=hint)
    if target is not None:
        there = {index: one for index, one in chosen.items() if one.node == target.spec.id}
        if len(there) == len(chosen):
            raise Conflict(f"{target.spec.name} has {_describe_tasks(job, there)} already", hint=hint)
        return {index: one for index, one in chosen.items() if index not in there}
    return chosen


def _refuse_tasks(job: JobView, named: dict[int, _LiveAttempt]) -> None:
    spec = job.spec
    if spec.run is RunMode.AT_MOST_ONCE:
        stopped = _live_attempts(job) if spec.gang else named
        started = [index for index, one in stopped.items() if one.phase >= Phase.RUNNING]
        if started:
            problem = f"task {min(started)} of job {spec.id} runs at_most_once, and has started"
            raise Conflict(problem, hint="it is never started a second time; cancel it, and submit it again")
    away = {index for index, one in _live_attempts(job).items() if one.phase is Phase.STOPPING}
    away |= job.moving.keys() | named.keys()
    if len(away) > MOVES_MAX:
        raise Conflict(f"{len(away)} tasks of job {spec.id} would move", hint=f"name at most {MOVES_MAX}")
    bound = _disruption_limit(job)
    if bound is not None and len(away) > max(1, bound.tasks):
        problem = f"{len(away)} tasks of job {spec.id} would be away at one time, and its {bound.field} is"
        raise Conflict(f"{problem} {bound.tasks}", hint="name fewer tasks, or wait until others run again")


class _DisruptionLimit(NamedTuple):
    """How many tasks of a job its user allows to be away at one time, and the field that says so."""

    tasks: int
    field: str


def _disruption_limit(job: JobView) -> _DisruptionLimit | None:
    """None: any number. A gang always moves as a whole."""
    spec = job.spec
    bounds = [_DisruptionLimit(spec.rollout.max_parallel, "rollout.max_parallel")] if spec.is_service else []
    bounds += [] if spec.evict_at_most is None else [_DisruptionLimit(spec.evict_at_most, "evict_at_most")]
    return None if spec.gang else min(bounds, default=None)


def _write_orders(view: View, job: JobView, order: _MoveRequest, caller: Caller, now: Instant) -> Plan[JobId]:
    spec, before, live = job.spec, job.intent or JobIntent(job.spec.id), _live_attempts(job)
    stopped = live if spec.gang else order.leaving
    goes_to = None if order.target is None else order.target.spec.id
    moves = {
        index: MoveOrder(one.attempt, one.tries, one.node, goes_to, now.ms, leaves=index in order.leaving)
        for index, one in stopped.items()
    }
    # Of an at_most_once task only an offer is withdrawn; anything else is stopped as by a restart.
    once = spec.run is RunMode.AT_MOST_ONCE
    restart = {} if once else {index: one.attempt for index, one in stopped.items()}
    still = {i: number for i, number in before.restart.items() if i in live and live[i].attempt == number}
    wish = msgspec.structs.replace(
        before, restart={**still, **restart}, moves={**job.moving, **moves}, at_ms=now.ms
    )
    ranges = Ranges(sorted(stopped))
    where = _describe_sources(view, stopped) if order.target is None else f"to {order.target.spec.name}"
    why = f"{caller.name} moves {_describe_tasks(job, stopped)} {where}"
    event = EventRecord("task.moving", why, job=spec.id, node=goes_to, indices=tuple(ranges.pairs))
    return Plan((wish,), events=(event,), why=why, answer=spec.id)


def _describe_sources(view: View, stopped: dict[int, _LiveAttempt]) -> str:
    sources = list(dict.fromkeys(one.node for one in stopped.values()))
    return f"away from {view.nodes[sources[0]].spec.name if len(sources) == 1 else f'{len(sources)} nodes'}"


def _describe_tasks(job: JobView, tasks: Mapping[int, _LiveAttempt]) -> str:
    return f"task{'s' if len(tasks) > 1 else ''} {Ranges(sorted(tasks))} of job {job.spec.id}"


def _live_attempts(job: JobView) -> dict[int, _LiveAttempt]:
    """By index: the tasks of a job that are on a node."""
    found: dict[int, _LiveAttempt] = {}
    for block, phases in job.phases.items():
        if block not in job.attempts:
            continue
        attempts = job.attempts[block]
        number, tries, node = (ints(attempts, name) for name in ("number", "tries", "node"))
        for at, phase in enumerate(phases):
            if Phase.PENDING < phase < FIRST_END and phase != Phase.UNRESOLVED:
                where = attempts.nodes[node[at]]
                found[block * BLOCK_TASKS + at] = _LiveAttempt(number[at], tries[at], where, Phase(phase))
    return found
