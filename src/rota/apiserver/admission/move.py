"""Moves: a request to move tasks to another node + the view -> a Plan with move orders, or a refusal.

A task is moved by stopping its attempt and placing it elsewhere. Whether it would fit there is asked of the
scheduler before anything is stopped.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.actions import AdmitAction, parse_indices
from rota.apiserver.admission.live_attempts import LiveAttempt, live_attempts, require_active
from rota.apiserver.lookup import find_job, find_node
from rota.apiserver.spec import fields
from rota.model.columns import Ranges
from rota.model.errors import Conflict
from rota.model.ids import JobId, NodeId
from rota.model.job import JobIntent, JobKind, MoveOrder
from rota.model.limits import MOVES_MAX, NAME_LENGTH_MAX
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.shape import RunMode
from rota.model.view import JobView, NodeView, View
from rota.rules.phases import Phase


class WhyNotMoved(Protocol):
    """The scheduler's answer: why these tasks would not fit there, or None."""

    def __call__(
        self, view: View, job: JobView, leaving: Mapping[int, NodeId], target: NodeId | None, now: Instant
    ) -> str | None: ...


class _MoveRequest(NamedTuple):
    """The tasks that leave their nodes, and their target if one is named."""

    leaving: dict[int, LiveAttempt]
    target: NodeView | None


def move_admission(why_not: WhyNotMoved) -> AdmitAction:
    """The admission of moves; `why_not` is the scheduler's check that the tasks fit elsewhere."""

    def move(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
        given = fields.known_fields(body, ("indices", "to"))
        job = find_job(view, ref, caller)
        access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
        target = None if given.get("to") is None else _find_target(view, given["to"])
        _refuse_job(job, target)
        named = _select_tasks(job, parse_indices(given.get("indices"), job), target)
        _refuse_tasks(job, named)
        leaving = {index: attempt.node for index, attempt in named.items()}
        # Refused rather than queued: a running task is worth more than one that waits for its target.
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
    require_active(job, "none of its tasks can be moved")
    if job.intent is not None and job.intent.paused:
        hint = f"resume it first: rota resume {spec.id}"
        raise Conflict(f"job {spec.id} is paused: a task that stops would not start elsewhere", hint=hint)
    if spec.kind is JobKind.SYSTEM:
        hint = "close the node, or change the job's where"
        raise Conflict(f"job {spec.id} is a system job: each of its tasks belongs to one node", hint=hint)
    if spec.gang and target is not None:
        hint = "leave out the target: the gang is placed again without the nodes of these tasks"
        raise Conflict(f"job {spec.id} is a gang: its tasks are placed together", hint=hint)


def _select_tasks(job: JobView, indices: list[int] | None, target: NodeView | None) -> dict[int, LiveAttempt]:
    """The tasks that are to leave their nodes. Each one that is named must be on a node."""
    live, hint = live_attempts(job), f"see rota show {job.spec.id}"
    chosen = live if indices is None else {index: live[index] for index in indices if index in live}
    missing = sorted(set(indices or ()).difference(chosen))
    if missing or not chosen:
        what = f"task {missing[0]}" if missing else "no task"
        raise Conflict(f"{what} of job {job.spec.id} is {'not ' if missing else ''}on a node", hint=hint)
    if target is not None:
        on_target = {index: attempt for index, attempt in chosen.items() if attempt.node == target.spec.id}
        if len(on_target) == len(chosen):
            raise Conflict(f"{target.spec.name} has {_describe_tasks(job, on_target)} already", hint=hint)
        return {index: attempt for index, attempt in chosen.items() if index not in on_target}
    return chosen


def _refuse_tasks(job: JobView, named: dict[int, LiveAttempt]) -> None:
    spec = job.spec
    if spec.run is RunMode.AT_MOST_ONCE:
        stopped = live_attempts(job) if spec.gang else named
        started = [index for index, attempt in stopped.items() if attempt.phase >= Phase.RUNNING]
        if started:
            problem = f"task {min(started)} of job {spec.id} runs at_most_once, and has started"
            raise Conflict(problem, hint="it must not start a second time; cancel it, and submit it again")
    # Tasks of an earlier move count until they run again: two requests together must not exceed the limit.
    down = {index for index, attempt in live_attempts(job).items() if attempt.phase is Phase.STOPPING}
    down |= job.moving.keys() | named.keys()
    if len(down) > MOVES_MAX:
        raise Conflict(f"{len(down)} tasks of job {spec.id} would move", hint=f"name at most {MOVES_MAX}")
    bound = _disruption_limit(job)
    if bound is not None and len(down) > max(1, bound.tasks):
        problem = f"{len(down)} tasks of job {spec.id} would be stopped at one time, and its {bound.field} is"
        raise Conflict(f"{problem} {bound.tasks}", hint="name fewer tasks, or wait until others run again")


class _DisruptionLimit(NamedTuple):
    """How many tasks of a job may be stopped at one time, and the field of its spec that limits them."""

    tasks: int
    field: str


def _disruption_limit(job: JobView) -> _DisruptionLimit | None:
    """The tighter of the two limits; None: any number. A gang always moves as a whole."""
    spec = job.spec
    bounds = [_DisruptionLimit(spec.rollout.max_parallel, "rollout.max_parallel")] if spec.is_service else []
    bounds += [] if spec.evict_at_most is None else [_DisruptionLimit(spec.evict_at_most, "evict_at_most")]
    return None if spec.gang else min(bounds, default=None)


def _write_orders(view: View, job: JobView, order: _MoveRequest, caller: Caller, now: Instant) -> Plan[JobId]:
    spec, before, live = job.spec, job.intent or JobIntent(job.spec.id), live_attempts(job)
    stopped = live if spec.gang else order.leaving
    goes_to = None if order.target is None else order.target.spec.id
    moves = {
        index: MoveOrder(
            attempt.number, attempt.tries, attempt.node, goes_to, now.ms, leaves=index in order.leaving
        )
        for index, attempt in stopped.items()
    }
    # An at_most_once task that moves has not started: its offer is withdrawn. Others are stopped as by a
    # restart.
    withdrawn = spec.run is RunMode.AT_MOST_ONCE
    restart = {} if withdrawn else {index: attempt.number for index, attempt in stopped.items()}
    still = {i: number for i, number in before.restart.items() if i in live and live[i].number == number}
    # Orders of earlier moves that are still in progress are kept; finished ones are
    # not in `job.moving` any more.
    intent = msgspec.structs.replace(
        before, restart={**still, **restart}, moves={**job.moving, **moves}, at_ms=now.ms
    )
    ranges = Ranges(sorted(stopped))
    where = _describe_sources(view, stopped) if order.target is None else f"to {order.target.spec.name}"
    why = f"{caller.name} moves {_describe_tasks(job, stopped)} {where}"
    event = EventRecord("task.moving", why, job=spec.id, node=goes_to, indices=tuple(ranges.pairs))
    return Plan((intent,), events=(event,), why=why, answer=spec.id)


def _describe_sources(view: View, stopped: dict[int, LiveAttempt]) -> str:
    sources = list(dict.fromkeys(attempt.node for attempt in stopped.values()))
    return f"away from {view.nodes[sources[0]].spec.name if len(sources) == 1 else f'{len(sources)} nodes'}"


def _describe_tasks(job: JobView, tasks: Mapping[int, LiveAttempt]) -> str:
    return f"task{'s' if len(tasks) > 1 else ''} {Ranges(sorted(tasks))} of job {job.spec.id}"
