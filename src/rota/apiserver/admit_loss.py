"""What the owner of a job's recovery says of tasks that were lost: once for each attempt."""

from collections.abc import Iterable

import msgspec

from rota.apiserver import access, fields
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission import subscriber_name
from rota.apiserver.finding import find_job
from rota.model.columns import Ranges
from rota.model.errors import BadField, Conflict, NotAllowed
from rota.model.job import JobSpec
from rota.model.limits import ANSWERS_MAX, BLOCK_TASKS
from rota.model.plan import Event, Plan
from rota.model.recovery import Answer, JobAnswers, Loss, Word
from rota.model.view import JobView, View


class Said(msgspec.Struct, frozen=True):
    """As it was sent."""

    subscriber: str
    job: str
    indices: tuple[int, ...]
    attempt: int
    word: str


def resolve(view: View, said: Said, caller: Caller) -> Plan:
    """Repeated it changes nothing; a second word on the same attempt is refused: nobody acts twice."""
    job = find_job(view, said.job, caller)
    access.require(caller, Action.CANCEL, job.spec.namespace)
    _require_owner(job.spec, caller, said.subscriber)
    word = fields.one_of("word", said.word, Word)
    indices = _indices(job.spec, said.indices)
    news = [index for index in indices if not _is_repeated(job, index, said.attempt, word)]
    if not news:
        return Plan(answer=job.spec.id, fenced=True)
    for index in news:
        _require_unresolved(job, index, said.attempt)
    words = {**_still(job, len(news)), **dict.fromkeys(news, Answer(said.attempt, word))}
    ranges = Ranges(news)
    tasks = f"task{'s' if len(news) > 1 else ''} {ranges} of job {job.spec.id}"
    why = f"{job.spec.owner} says {word} of {tasks}, lost in attempt {said.attempt}"
    event = Event(
        "task.resolved",
        why,
        job=job.spec.id,
        indices=tuple(ranges.pairs),
        attempt=said.attempt,
        state=word.value,
    )
    return Plan((JobAnswers(job.spec.id, words),), events=(event,), why=why, answer=job.spec.id)


def unresolved(job: JobView) -> Iterable[tuple[int, Loss]]:
    """Tasks by index that wait for their owner's word."""
    for block in sorted(job.tasks):
        for position, loss in sorted(job.tasks[block].losses.items()):
            yield block * BLOCK_TASKS + position, loss


def _require_owner(spec: JobSpec, caller: Caller, subscriber: str) -> None:
    if spec.owner is None:
        hint = "submit it with recovery = controller to decide yourself"
        raise Conflict(f"what job {spec.id} loses is recovered by: {spec.recovery}", hint=hint)
    name = subscriber_name(caller, subscriber)
    if name != spec.owner:
        hint = f"its owner is the subscriber {spec.controller} of {spec.user}"
        raise NotAllowed(f"{name} does not own the recovery of job {spec.id}", field="subscriber", hint=hint)


def _indices(spec: JobSpec, given: tuple[int, ...]) -> list[int]:
    if not given:
        raise BadField("indices", "names no task", "write at least one index")
    if len(given) > ANSWERS_MAX:
        raise BadField("indices", f"names {len(given)} tasks", f"name at most {ANSWERS_MAX}")
    if max(given) >= spec.count:
        raise BadField("indices", f"there is no task {max(given)}", f"write 0 to {spec.count - 1}")
    return sorted(set(given))


def _is_repeated(job: JobView, index: int, attempt: int, word: Word) -> bool:
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


def _still(job: JobView, more: int) -> dict[int, Answer]:
    """Earlier words, so that they can be repeated; the first of them go when there are too many."""
    before = [] if job.answers is None else list(job.answers.words.items())
    return dict(before[max(0, len(before) + more - ANSWERS_MAX) :])
