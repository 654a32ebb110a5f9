"""What tasks have reported: kept as it was said first, if in time; told to all; and counted as it says."""

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
    def __init__(self, known: Mapping[str, Any], world: World) -> None:
        self._known = known  # on disk, but for what is being written
        self._world = world
        self._before: dict[str, Any] = {}  # attempts that the last commit wrote, as they were
        self._acknowledged: dict[str, ResultRecord] = {}
        self.failed: dict[AttemptKey, str] = {}  # attempts that said so, and why

    def committed(self, batch: Batch) -> None:
        self._before = {key: self._known.get(key) for key, _ in batch.puts if key.startswith("attempt/")}
        for key, value in [put for put in batch.puts if put[0].startswith("result/")]:
            now, before = codec.decode(key, value), self._known.get(key)
            assert isinstance(now, ResultRecord)
            if before is None:
                self._check_first(now, _events(batch))
            elif before != now:
                raise InvariantBroken(
                    f"{_name(now)} reported {_words(before)}, which has become {_words(now)}"
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
        told = [event for event in events if event.kind == "task.reported" and _is_of(event, now)]
        if len(told) != 1 or told[0].result is None:
            raise InvariantBroken(f"{_name(now)} has reported, and {len(told)} events tell of it")
        if json.loads(told[0].result) != {
            "results": json.loads(now.results),
            "failure": now.failure,
        }:
            raise InvariantBroken(
                f"{_name(now)} has reported {_words(now)}, and others are told {told[0].result}"
            )
        if now.failure is not None:
            self.failed[now.job, now.index, now.attempt] = now.failure

    def answered(self, said: ResultCall, answer: object) -> None:
        """By a server, at this moment."""
        wanted = said.result
        job, kept = self._known.get(f"job/{wanted.job}/spec"), self._known.get(str(wanted.key))
        last, is_over = self._attempt(wanted)
        match answer:
            case results.ResultReported():
                self._world.count(f"task: was told that its report is {'kept' if answer.is_new else 'known'}")
                if job is not None and not _same(kept, wanted):
                    raise InvariantBroken(
                        f"{_name(wanted)} was told that {_words(wanted)} is kept, and kept is {_words(kept)}"
                    )
                self._acknowledged[str(wanted.key)] = wanted
            case Conflict() if job is not None:
                self._world.count("task: its report was refused")
                is_first = kept is None and last == wanted.attempt and not is_over
                if is_first or _same(kept, wanted):
                    raise InvariantBroken(
                        f"{_name(wanted)} may report {_words(wanted)} and was told: {answer}"
                    )
            case NotFound() if job is not None and self._was_there(wanted):
                raise InvariantBroken(f"{_name(wanted)} is there, and was told: {answer}")
            case _:
                pass

    def at_the_end(self) -> None:
        for key, result in self._acknowledged.items():
            kept = self._known.get(key)
            if f"job/{result.job}/spec" in self._known and not _same(kept, result):
                raise InvariantBroken(
                    f"{_name(result)} had reported {_words(result)}, and kept is {_words(kept)}"
                )

    def _was_there(self, of: ResultRecord) -> bool:
        """Before the last commit: a server refuses first, writes then, and says so last."""
        key = f"attempt/{of.job}/{of.index // BLOCK_TASKS}"
        return _last(self._before.get(key, self._known.get(key)), of) >= of.attempt

    def _attempt(self, of: ResultRecord) -> tuple[int, bool]:
        """The last there is of its task, and whether this one has ended."""
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


def _same(kept: ResultRecord | None, said: ResultRecord) -> bool:
    return kept is not None and (kept.results, kept.failure) == (said.results, said.failure)


def _last(attempts: AttemptBlock | None, of: ResultRecord) -> int:
    """The newest attempt of its task."""
    return 0 if attempts is None else ints(attempts, "number")[of.index % BLOCK_TASKS]


def _name(result: ResultRecord) -> str:
    return f"attempt {result.attempt} of task {result.index} of job {result.job}"


def _words(result: ResultRecord | None) -> str:
    return "nothing" if result is None else f"{result.results.decode()} and the failure {result.failure}"
