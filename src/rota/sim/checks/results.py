"""Results of tasks: the first report before the end is stored, published, and decides the outcome."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rota.apiserver.admission import results
from rota.keeper.resources.reservations import AttemptKey
from rota.model.attempt import AttemptBlock
from rota.model.columns import ints
from rota.model.errors import Conflict, NotFound
from rota.model.lifecycle import ATTEMPT_FIRST_END
from rota.model.limits import BLOCK_TASKS
from rota.model.plan import EventRecord
from rota.model.result import ResultRecord
from rota.sim.cluster.task_results import ResultCall
from rota.sim.world.invariant import InvariantBroken
from rota.sim.world.virtual_time import World
from rota.store import codec
from rota.store.protocol import Batch


class ResultChecks:
    """Compares stored results, events and answers with what tasks have reported."""

    def __init__(self, known: Mapping[str, Any], world: World) -> None:
        self._known = known  # durable records, without the commit being checked
        self._world = world
        self._before: dict[str, Any] = {}  # attempt blocks before the last commit
        self._acknowledged: dict[str, ResultRecord] = {}
        self.failed: dict[AttemptKey, str] = {}  # attempts that reported a failure -> the failure

    def committed(self, batch: Batch) -> None:
        self._before = {key: self._known.get(key) for key, _ in batch.puts if key.startswith("attempt/")}
        for key, value in [put for put in batch.puts if put[0].startswith("result/")]:
            now, before = codec.decode(key, value), self._known.get(key)
            assert isinstance(now, ResultRecord)
            if before is None:
                self._check_first(now, _events(batch))
            elif before != now:
                raise InvariantBroken(
                    f"{_name(now)} reported {_describe(before)}, which is now {_describe(now)}"
                )
        for key in [key for key in batch.deletes if key.startswith("result/")]:
            if f"job/{key.split('/')[1]}/spec" not in batch.deletes:
                raise InvariantBroken(f"what was reported as {key} is deleted, and its job is not")

    def _check_first(self, now: ResultRecord, events: Iterable[EventRecord]) -> None:
        last, is_over = self._attempt(now)
        if last != now.attempt:
            raise InvariantBroken(f"{_name(now)} has reported, and its task is at attempt {last}")
        if is_over:
            raise InvariantBroken(f"{_name(now)} has reported after its end")
        published = [event for event in events if event.kind == "task.reported" and _is_of(event, now)]
        if len(published) != 1 or published[0].result is None:
            raise InvariantBroken(f"{_name(now)} has reported, and {len(published)} events announce it")
        if json.loads(published[0].result) != {
            "results": json.loads(now.results),
            "failure": now.failure,
        }:
            raise InvariantBroken(
                f"{_name(now)} has reported {_describe(now)}, and the event says {published[0].result}"
            )
        if now.failure is not None:
            self.failed[now.job, now.index, now.attempt] = now.failure

    def answered(self, call: ResultCall, answer: object) -> None:
        """A server answers a call, at this moment."""
        result = call.result
        job, stored = self._known.get(f"job/{result.job}/spec"), self._known.get(str(result.key))
        last, is_over = self._attempt(result)
        match answer:
            case results.ResultReported():
                self._world.count(f"task: its report was {'stored' if answer.is_new else 'known'}")
                if job is not None and not _same(stored, result):
                    raise InvariantBroken(
                        f"{_name(result)} was told {_describe(result)}, and {_describe(stored)} is stored"
                    )
                self._acknowledged[str(result.key)] = result
            case Conflict() if job is not None:
                self._world.count("task: its report was refused")
                is_first = stored is None and last == result.attempt and not is_over
                if is_first or _same(stored, result):
                    raise InvariantBroken(
                        f"{_name(result)} may report {_describe(result)} and was told: {answer}"
                    )
            case NotFound() if job is not None and self._existed(result):
                raise InvariantBroken(f"{_name(result)} exists, and was told: {answer}")
            case _:
                pass

    def at_the_end(self) -> None:
        for key, result in self._acknowledged.items():
            stored = self._known.get(key)
            if f"job/{result.job}/spec" in self._known and not _same(stored, result):
                raise InvariantBroken(
                    f"{_name(result)} had reported {_describe(result)}, and {_describe(stored)} is stored"
                )

    def _existed(self, of: ResultRecord) -> bool:
        """Whether the attempt existed before the last commit: a refusal may predate that commit."""
        key = f"attempt/{of.job}/{of.index // BLOCK_TASKS}"
        return _last(self._before.get(key, self._known.get(key)), of) >= of.attempt

    def _attempt(self, of: ResultRecord) -> tuple[int, bool]:
        """The latest attempt number of the task, and whether this attempt has ended."""
        block, position = divmod(of.index, BLOCK_TASKS)
        attempts = self._known.get(f"attempt/{of.job}/{block}")
        status = self._known.get(f"status/{of.job}/{block}")
        last = _last(attempts, of)
        if status is None or ints(status, "number")[position] != of.attempt:
            return last, False
        return last, status.state[position] >= ATTEMPT_FIRST_END


def _events(batch: Batch) -> Iterable[EventRecord]:
    return () if batch.events is None else codec.decode_events(batch.events)[1]


def _is_of(event: EventRecord, result: ResultRecord) -> bool:
    named = (event.job, event.indices, event.attempt)
    return named == (result.job, ((result.index, result.index),), result.attempt)


def _same(stored: ResultRecord | None, reported: ResultRecord) -> bool:
    return stored is not None and (stored.results, stored.failure) == (reported.results, reported.failure)


def _last(attempts: AttemptBlock | None, of: ResultRecord) -> int:
    """The latest attempt number of the task."""
    return 0 if attempts is None else ints(attempts, "number")[of.index % BLOCK_TASKS]


def _name(result: ResultRecord) -> str:
    return f"attempt {result.attempt} of task {result.index} of job {result.job}"


def _describe(result: ResultRecord | None) -> str:
    return "nothing" if result is None else f"{result.results.decode()} and the failure {result.failure}"
