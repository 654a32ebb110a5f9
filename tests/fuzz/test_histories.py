"""The differential fuzzer in small, and that it finds and shrinks a planted bug."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from rota.model.attempt import EVICTED, AttemptBlock
from rota.model.columns import Draft
from rota.model.ids import JobId
from rota.model.node_table import NodeTable
from rota.scheduler.blocked_queues import BlockedQueues
from rota.store import codec
from tests.fuzz.history import Step, history, parts, play, shrink

SEEDS = range(20, 60)
STEPS = 60
CORPUS = (Path(__file__).parent / "corpus.txt").read_text().splitlines()


@pytest.mark.parametrize("seed", SEEDS)
def test_live_mirror_equals_one_loaded_afresh(seed: int) -> None:
    failure = play(history(seed, STEPS))

    assert failure is None, "\n".join((*failure.told, failure.problem))


@pytest.mark.parametrize("line", CORPUS, ids=range(len(CORPUS)))
def test_history_that_once_failed_holds(line: str) -> None:
    failure = play(
        [Step(verb, int(number)) for verb, _, number in (word.partition(":") for word in line.split())]
    )

    assert failure is None, "\n".join((*failure.told, failure.problem))


def test_planted_leak_of_room_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = NodeTable.reserve

    def leak(room: NodeTable, slot: int, needs: Iterable[tuple[str, int]], tasks: int, line: int) -> None:
        hold(room, slot, needs, max(0, tasks), line)

    monkeypatch.setattr(NodeTable, "reserve", leak)
    steps, kind = next(found for seed in SEEDS if (found := _failing(seed)))
    few = shrink(steps, kind)

    failure = play(few)
    assert failure is not None
    assert failure.kind == kind
    assert len(few) < 8


def test_planted_loss_of_a_wake_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockedQueues, "find_startable", lambda *_: [])

    kind = next(found[1] for seed in SEEDS if (found := _failing(seed)))

    assert kind == "overlooked attempt"


def test_tasks_of_one_block_are_overlooked_one_by_one() -> None:
    block = AttemptBlock.new(JobId("1"), 0, 4)
    one, other = Draft(block), Draft(block)
    one["flags"][1] = other["flags"][2] = EVICTED
    before, first, second = map(codec.encode, (block, one.done(), other.done()))

    assert parts(block.key, before, first) == ["attempt/1/0 task 1"]
    assert parts(block.key, before, second) == ["attempt/1/0 task 2"]
    assert parts(block.key, None, second) == ["attempt/1/0 task 2"]


def _failing(seed: int) -> tuple[list[Step], str] | None:
    steps = history(seed, STEPS)
    failure = play(steps)
    return None if failure is None else (steps[: len(failure.told)], failure.kind)
