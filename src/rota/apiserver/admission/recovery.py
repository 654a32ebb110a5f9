"""Decisions of recovery controllers on lost tasks, and the cursors of event subscribers.

A decision is stored once per attempt. Repeating it is accepted, since its answer may have been lost; another
decision on the same attempt is refused, so that a controller and a person never both act on one loss.
"""

from collections.abc import Iterable, Mapping

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.actions import parse_indices
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.apiserver.streams.event_cursor import EventCursor
from rota.model.columns import Ranges
from rota.model.errors import BadField, Conflict, NotAllowed, QueueFull
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.limits import ANSWERS_MAX, BLOCK_TASKS
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.recovery import Loss, RecoveryAnswer, RecoveryAnswers, RecoveryDecision
from rota.model.subscriber import Subscriber
from rota.model.view import JobView, View


class LossResolution(msgspec.Struct, frozen=True):
    """The request of a controller, as it was sent."""

    subscriber: str
    job: str
    indices: tuple[int, ...]
    attempt: int
    decision: str


def resolve_losses(view: View, request: LossResolution, caller: Caller) -> Plan[JobId]:
    """The decision of the job's recovery controller on lost tasks."""
    job = find_job(view, request.job, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    _require_controller(job.spec, caller, request.subscriber)
    decision = fields.one_of("word", request.decision, RecoveryDecision)
    indices = _check_indices(job.spec, request.indices)
    # Repeats are filtered before the check: a loss that was decided is no longer unresolved.
    unanswered = [index for index in indices if not _is_repeat(job, index, request.attempt, decision)]
    for index in unanswered:
        _require_unresolved(job, index, request.attempt)
    return _write_answers(
        job, dict.fromkeys(unanswered, request.attempt), decision, str(job.spec.recovery_controller)
    )


def resolve_losses_by_user(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """A decision by hand, in place of the controller: on all unresolved tasks of a job, or some of them."""
    del now
    given = fields.known_fields(body, ("indices", "word"))
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    decision = fields.one_of("word", given.get("word"), RecoveryDecision)
    losses = {index: loss.attempt for index, loss in unresolved_losses(job)}
    indices = parse_indices(given.get("indices"), job)
    if indices is None:
        indices = list(losses)
    for index in indices:
        if index not in losses and not _was_decided(job, index, decision):
            hint = f"see rota show {job.spec.id} --state unresolved"
            raise Conflict(f"task {index} of job {job.spec.id} is not waiting for a decision", hint=hint)
    if not indices:
        raise Conflict(
            f"no task of job {job.spec.id} is waiting for a decision", hint=f"see rota show {job.spec.id}"
        )
    unanswered = {
        index: losses[index]
        for index in indices
        if index in losses and not _was_decided(job, index, decision)
    }
    return _write_answers(
        job, dict(list(unanswered.items())[:ANSWERS_MAX]), decision, f"{caller.name}, by hand,"
    )


def _was_decided(job: JobView, index: int, decision: RecoveryDecision) -> bool:
    """Whether this was decided for its last lost attempt: then the request is a repeat."""
    last = None if job.answers is None else job.answers.decisions.get(index)
    block, position = divmod(index, BLOCK_TASKS)
    loss = job.tasks[block].losses.get(position) if block in job.tasks else None
    return last is not None and last.decision is decision and (loss is None or loss.attempt == last.attempt)


def _write_answers(
    job: JobView, attempts: dict[int, int], decision: RecoveryDecision, who: str
) -> Plan[JobId]:
    if not attempts:
        return Plan(answer=job.spec.id, fenced=True)
    answers = {index: RecoveryAnswer(attempt, decision) for index, attempt in attempts.items()}
    events = [
        _resolved_event(job, attempts, attempt, decision, who) for attempt in sorted(set(attempts.values()))
    ]
    return Plan(
        (RecoveryAnswers(job.spec.id, {**_remembered_answers(job, len(answers)), **answers}),),
        events=tuple(events),
        why="; ".join(event.why for event in events),
        answer=job.spec.id,
    )


def _resolved_event(
    job: JobView, attempts: dict[int, int], attempt: int, decision: RecoveryDecision, who: str
) -> EventRecord:
    ranges = Ranges([index for index, number in attempts.items() if number == attempt])
    many = sum(number == attempt for number in attempts.values()) > 1
    tasks = f"task{'s' if many else ''} {ranges} of job {job.spec.id}"
    return EventRecord(
        "task.resolved",
        f"{who} decides '{decision}' for {tasks}, lost in attempt {attempt}",
        job=job.spec.id,
        indices=tuple(ranges.pairs),
        attempt=attempt,
        state=decision.value,
    )


def unresolved_losses(job: JobView) -> Iterable[tuple[int, Loss]]:
    """Tasks that wait for the decision of their recovery controller, by index."""
    for block in sorted(job.tasks):
        for position, loss in sorted(job.tasks[block].losses.items()):
            yield block * BLOCK_TASKS + position, loss


def _require_controller(spec: JobSpec, caller: Caller, subscriber: str) -> None:
    if spec.recovery_controller is None:
        hint = "submit it with recovery = controller to decide yourself"
        raise Conflict(f"lost tasks of job {spec.id} are recovered by: {spec.recovery}", hint=hint)
    name = subscriber_name(caller, subscriber)
    if name != spec.recovery_controller:
        hint = f"its recovery controller is the subscriber {spec.controller} of {spec.user}"
        raise NotAllowed(
            f"{name} is not the recovery controller of job {spec.id}", field="subscriber", hint=hint
        )


def _check_indices(spec: JobSpec, given: tuple[int, ...]) -> list[int]:
    if not given:
        raise BadField("indices", "names no task", "write at least one index")
    if len(given) > ANSWERS_MAX:
        raise BadField("indices", f"names {len(given)} tasks", f"name at most {ANSWERS_MAX}")
    if max(given) >= spec.count:
        raise BadField("indices", f"there is no task {max(given)}", f"write 0 to {spec.count - 1}")
    return sorted(set(given))


def _is_repeat(job: JobView, index: int, attempt: int, decision: RecoveryDecision) -> bool:
    before = None if job.answers is None else job.answers.on(index, attempt)
    if before is not None and before is not decision:
        hint = "the first decision counts"
        raise Conflict(
            f"'{before}' was decided before for attempt {attempt} of task {index} of job {job.spec.id}",
            hint=hint,
        )
    return before is decision


def _require_unresolved(job: JobView, index: int, attempt: int) -> None:
    block, position = divmod(index, BLOCK_TASKS)
    task = job.tasks.get(block)
    loss = None if task is None else task.losses.get(position)
    if loss is None:
        raise Conflict(
            f"task {index} of job {job.spec.id} is not waiting for a decision",
            hint=f"rota show {job.spec.id}",
        )
    if loss.attempt != attempt:
        raise Conflict(
            f"the lost attempt of task {index} of job {job.spec.id} is {loss.attempt}",
            field="attempt",
            hint=f"decide on attempt {loss.attempt}",
        )


def _remembered_answers(job: JobView, more: int) -> dict[int, RecoveryAnswer]:
    """Earlier decisions, kept so that they can be repeated; the oldest go when there are too many."""
    before = [] if job.answers is None else list(job.answers.decisions.items())
    return dict(before[max(0, len(before) + more - ANSWERS_MAX) :])


SUBSCRIBERS_MAX = 1000  # each is a record that is never deleted


def acknowledge_events(
    known: Mapping[str, Subscriber], name: str, revision: int, index: int, owner: str = ""
) -> Plan[Subscriber]:
    """Advance the cursor of a subscriber. It never moves back: a late or repeated request changes nothing.

    The cursor of an earlier owner of the name is replaced by one of the caller.
    """
    before = known.get(name)
    # The token was deleted and another one has its name: it must not inherit the position of the first.
    if before is not None and not before.belongs_to(owner):
        before = None
    if before is not None and (revision, index) <= (before.revision, before.index):
        return Plan(answer=before)
    if name not in known and len(known) >= SUBSCRIBERS_MAX:
        raise QueueFull(f"there are {len(known)} subscribers already", field="subscriber")
    subscriber = Subscriber(name, revision, index, owner)
    return Plan((subscriber,), answer=subscriber)


def subscriber_name(caller: Caller, name: str) -> str:
    """The name prefixed by the token's, so that no token can move the cursor of another."""
    return f"{caller.name}:{fields.name('subscriber', name)}"


def subscribe(
    known: Mapping[str, Subscriber], name: str, now: EventCursor, owner: str = ""
) -> Plan[Subscriber]:
    """The cursor that a subscriber continues from: its acknowledged one, or now for a new subscriber.

    It is fenced: a deposed leader may know an older cursor only, and must not answer with it.
    """
    before = known.get(name)
    if before is not None and before.belongs_to(owner):
        return Plan(answer=before, fenced=True)
    return acknowledge_events(known, name, now.revision, now.index, owner)
