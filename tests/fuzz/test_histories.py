"""The differential fuzzer on few histories; it finds and shrinks planted bugs."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from rota.model.attempt import EVICTED, AttemptBlock
from rota.model.columns import Draft
from rota.model.ids import JobId
from rota.model.node_table import NodeTable
from rota.scheduler.blocked_queues import BlockedQueues
from rota.store import codec
from tests.fuzz.history import HistoryStep, history, parts, play, shrink

SEEDS = range(20, 60)
STEPS = 60
CORPUS = (Path(__file__).parent / "corpus.txt").read_text().splitlines()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_live_mirror_equals_a_freshly_loaded_one(seed: int) -> None:
    failure = play(history(seed, STEPS))

    assert failure is None, "\n".join((*failure.steps, failure.problem))


@pytest.mark.parametrize("line", CORPUS, ids=range(len(CORPUS)))
def test_a_history_that_once_failed_holds(line: str) -> None:
    failure = play(
        [HistoryStep(verb, int(number)) for verb, _, number in (step.partition(":") for step in line.split())]
    )

    assert failure is None, "\n".join((*failure.steps, failure.problem))


def test_a_planted_leak_of_reservations_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = NodeTable.reserve

    def leak(table: NodeTable, slot: int, needs: Iterable[tuple[str, int]], tasks: int, line: int) -> None:
        reserve(table, slot, needs, max(0, tasks), line)

    monkeypatch.setattr(NodeTable, "reserve", leak)
    steps, kind = next(found for seed in SEEDS if (found := _failing(seed)))
    few = shrink(steps, kind)

    failure = play(few)
    assert failure is not None
    assert failure.kind == kind
    assert len(few) < 8


def test_a_planted_lost_wake_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockedQueues, "find_startable", lambda *_: [])

    kind = next(found[1] for seed in SEEDS if (found := _failing(seed)))

    assert kind == "overlooked attempt"


def test_tasks_of_one_block_count_one_by_one() -> None:
    block = AttemptBlock.new(JobId("1"), 0, 4)
    first_draft, second_draft = Draft(block), Draft(block)
    first_draft["flags"][1] = second_draft["flags"][2] = EVICTED
    before, first, second = map(codec.encode, (block, first_draft.done(), second_draft.done()))

    assert parts(block.key, before, first) == ["attempt/1/0 task 1"]
    assert parts(block.key, before, second) == ["attempt/1/0 task 2"]
    assert parts(block.key, None, second) == ["attempt/1/0 task 2"]


def _failing(seed: int) -> tuple[list[HistoryStep], str] | None:
    steps = history(seed, STEPS)
    failure = play(steps)
    return None if failure is None else (steps[: len(failure.steps)], failure.kind)
