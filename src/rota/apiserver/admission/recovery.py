"""What the owner of a job's recovery says of tasks that were lost: once for each attempt."""

from collections.abc import Iterable

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission.actions import parse_indices
from rota.apiserver.admission.subscribers import subscriber_name
from rota.apiserver.lookup import find_job
from rota.apiserver.spec import fields
from rota.model.columns import Ranges
from rota.model.errors import BadField, Conflict, NotAllowed
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.limits import ANSWERS_MAX, BLOCK_TASKS
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.recovery import Loss, RecoveryAnswer, RecoveryAnswers, RecoveryDecision
from rota.model.view import JobView, View


class LossResolution(msgspec.Struct, frozen=True):
    """As it was sent."""

    subscriber: str
    job: str
    indices: tuple[int, ...]
    attempt: int
    decision: str


def resolve_losses(view: View, said: LossResolution, caller: Caller) -> Plan[JobId]:
    """Repeated it changes nothing; a second word on the same attempt is refused: nobody acts twice."""
    job = find_job(view, said.job, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    _require_controller(job.spec, caller, said.subscriber)
    word = fields.one_of("word", said.decision, RecoveryDecision)
    indices = _check_indices(job.spec, said.indices)
    news = [index for index in indices if not _is_repeat(job, index, said.attempt, word)]
    for index in news:
        _require_unresolved(job, index, said.attempt)
    return _write_answers(job, dict.fromkeys(news, said.attempt), word, str(job.spec.recovery_controller))


def resolve_losses_by_user(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan[JobId]:
    """Whoever may cancel a job may also speak for its controller, of all that waits for its word or some."""
    del now
    said = fields.known_fields(body, ("indices", "word"))
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.CANCEL, job.spec.namespace)
    word = fields.one_of("word", said.get("word"), RecoveryDecision)
    losses = {index: loss.attempt for index, loss in unresolved_losses(job)}
    wanted = parse_indices(said.get("indices"), job)
    if wanted is None:
        wanted = list(losses)
    for index in wanted:
        if index not in losses and not _was_decided(job, index, word):
            hint = f"see rota show {job.spec.id} --state unresolved"
            raise Conflict(f"task {index} of job {job.spec.id} waits for nobody's word", hint=hint)
    if not wanted:
        raise Conflict(f"no task of job {job.spec.id} waits for a word", hint=f"see rota show {job.spec.id}")
    news = {
        index: losses[index] for index in wanted if index in losses and not _was_decided(job, index, word)
    }
    return _write_answers(job, dict(list(news.items())[:ANSWERS_MAX]), word, f"{caller.name}, by hand,")


def _was_decided(job: JobView, index: int, word: RecoveryDecision) -> bool:
    """Of its last lost attempt: so an answer that did not arrive may be asked for again."""
    last = None if job.answers is None else job.answers.words.get(index)
    block, position = divmod(index, BLOCK_TASKS)
    loss = job.tasks[block].losses.get(position) if block in job.tasks else None
    return last is not None and last.word is word and (loss is None or loss.attempt == last.attempt)


def _write_answers(job: JobView, attempts: dict[int, int], word: RecoveryDecision, who: str) -> Plan[JobId]:
    if not attempts:
        return Plan(answer=job.spec.id, fenced=True)
    words = {index: RecoveryAnswer(attempt, word) for index, attempt in attempts.items()}
    events = [
        _resolved_event(job, attempts, attempt, word, who) for attempt in sorted(set(attempts.values()))
    ]
    return Plan(
        (RecoveryAnswers(job.spec.id, {**_remembered_answers(job, len(words)), **words}),),
        events=tuple(events),
        why="; ".join(event.why for event in events),
        answer=job.spec.id,
    )


def _resolved_event(
    job: JobView, attempts: dict[int, int], attempt: int, word: RecoveryDecision, who: str
) -> EventRecord:
    ranges = Ranges([index for index, number in attempts.items() if number == attempt])
    many = sum(number == attempt for number in attempts.values()) > 1
    tasks = f"task{'s' if many else ''} {ranges} of job {job.spec.id}"
    return EventRecord(
        "task.resolved",
        f"{who} says {word} of {tasks}, lost in attempt {attempt}",
        job=job.spec.id,
        indices=tuple(ranges.pairs),
        attempt=attempt,
        state=word.value,
    )


def unresolved_losses(job: JobView) -> Iterable[tuple[int, Loss]]:
    """Tasks by index that wait for their owner's word."""
    for block in sorted(job.tasks):
        for position, loss in sorted(job.tasks[block].losses.items()):
            yield block * BLOCK_TASKS + position, loss


def _require_controller(spec: JobSpec, caller: Caller, subscriber: str) -> None:
    if spec.recovery_controller is None:
        hint = "submit it with recovery = controller to decide yourself"
        raise Conflict(f"what job {spec.id} loses is recovered by: {spec.recovery}", hint=hint)
    name = subscriber_name(caller, subscriber)
    if name != spec.recovery_controller:
        hint = f"its owner is the subscriber {spec.controller} of {spec.user}"
        raise NotAllowed(f"{name} does not own the recovery of job {spec.id}", field="subscriber", hint=hint)


def _check_indices(spec: JobSpec, given: tuple[int, ...]) -> list[int]:
    if not given:
        raise BadField("indices", "names no task", "write at least one index")
    if len(given) > ANSWERS_MAX:
        raise BadField("indices", f"names {len(given)} tasks", f"name at most {ANSWERS_MAX}")
    if max(given) >= spec.count:
        raise BadField("indices", f"there is no task {max(given)}", f"write 0 to {spec.count - 1}")
    return sorted(set(given))


def _is_repeat(job: JobView, index: int, attempt: int, word: RecoveryDecision) -> bool:
    before = None if job.answers is None else job.answers.on(index, attempt)
    if before is not None and before is not word:
        hint = "what was said first counts"
        raise Conflict(
            f"{before} was said before of attempt {attempt} of task {index} of job {job.spec.id}", hint=hint
        )
    return before is word


def _require_unresolved(job: JobView, index: int, attempt: int) -> None:
    block, position = divmod(index, BLOCK_TASKS)
    task = job.tasks.get(block)
    loss = None if task is None else task.losses.get(position)
    if loss is None:
        raise Conflict(
            f"task {index} of job {job.spec.id} waits for nobody's word", hint=f"rota show {job.spec.id}"
        )
    if loss.attempt != attempt:
        raise Conflict(
            f"of task {index} of job {job.spec.id} attempt {loss.attempt} is lost",
            field="attempt",
            hint=f"speak of attempt {loss.attempt}",
        )


def _remembered_answers(job: JobView, more: int) -> dict[int, RecoveryAnswer]:
    """Earlier words, so that they can be repeated; the first of them go when there are too many."""
    before = [] if job.answers is None else list(job.answers.words.items())
    return dict(before[max(0, len(before) + more - ANSWERS_MAX) :])
