"""Faults of the cluster cost a growing backoff; a task that kills keepers is held, its neighbours are not."""

import random

import pytest

from rota.controllers.retry import fault_backoff_ms
from rota.engine.state.entries import JobEntry
from rota.model.columns import ints
from rota.model.ids import JobId
from rota.model.limits import (
    FAULT_BACKOFF_FIRST_MS,
    FAULT_BACKOFF_MAX_MS,
    FAULT_RESET_MS,
    QUARANTINE_KEEPER_DEATHS,
    QUARANTINE_KEEPER_DEATHS_TIED,
)
from rota.rules.phases import Phase
from rota.testing.builders import job_spec
from rota.testing.stage import Stage, StageMachine
from tests.controllers.one_node_stage import job, stage

CULPRIT, NEIGHBOUR = 1, 2


def runs(made: Stage, number: int, index: int = 0) -> bool:
    return any((JobId(str(number)), index) in machine.held for machine in made.machines.values())


def is_held(made: Stage, number: int) -> bool:
    return job(made, number).task_counts.held > 0


def tries(entry: JobEntry) -> int:
    return max(
        (ints(task, "wanted")[at] for task in entry.tasks.values() for at in range(task.size)), default=0
    )


def kill_keepers(made: Stage, culprit: int, until_held: int = 100) -> int:
    """Let the culprit kill the keeper whenever it runs, until it is held; returns how often it did."""
    for deaths in range(until_held):
        for _ in range(FAULT_BACKOFF_MAX_MS // 100):
            if runs(made, culprit) or is_held(made, culprit):
                break
            made.now_ms += 100
            made.run_to_quiescence()
        if is_held(made, culprit):
            return deaths
        where = next(one for one in made.machines.values() if (JobId(str(culprit)), 0) in one.held)
        where.lose_keeper(made.now.wall_ms)
        made.now_ms += 5
        made.run_to_quiescence()
    raise AssertionError(f"not held after {until_held} deaths")


def test_a_task_that_kills_its_keeper_is_held_and_says_why() -> None:
    made = stage()
    made.submit(job_spec(CULPRIT))

    assert kill_keepers(made, CULPRIT) == QUARANTINE_KEEPER_DEATHS
    assert job(made, CULPRIT).tasks[0].reasons == {0: "the keeper died 3 times while it ran there: on a"}


def test_neighbours_of_a_poison_task_are_not_held() -> None:
    """For many jitters: they follow from the numbers of the jobs."""
    held = 0
    for number in range(2, 42):
        made = stage()
        made.submit(job_spec(number))
        made.submit(job_spec(CULPRIT))

        assert kill_keepers(made, CULPRIT) <= 2 * QUARANTINE_KEEPER_DEATHS_TIED
        held += is_held(made, number)
        made.wait(FAULT_BACKOFF_MAX_MS)
        assert is_held(made, number) or runs(made, number), "it goes on"

    assert held <= 1


def test_deaths_that_a_held_task_explains_do_not_count_against_its_neighbour_later() -> None:
    made = stage()
    made.submit(job_spec(CULPRIT))
    made.submit(job_spec(NEIGHBOUR))
    kill_keepers(made, CULPRIT)
    made.wait(FAULT_BACKOFF_MAX_MS)
    assert runs(made, NEIGHBOUR)
    made.submit(job_spec(3))

    kill_keepers(made, 3)

    assert not is_held(made, NEIGHBOUR)


def test_every_task_of_an_array_that_kills_keepers_is_held() -> None:
    made = stage()
    made.submit(job_spec(CULPRIT, count=3))
    made.submit(job_spec(NEIGHBOUR))
    for _ in range(3 * QUARANTINE_KEEPER_DEATHS_TIED):
        made.wait(FAULT_BACKOFF_MAX_MS)
        if not any(runs(made, CULPRIT, index) for index in range(3)):
            break
        made.machines["a"].lose_keeper(made.now.wall_ms)
        made.run_to_quiescence()

    assert job(made, CULPRIT).task_counts.held == 3


def test_a_released_task_starts_with_a_clean_record() -> None:
    made = stage()
    made.submit(job_spec(CULPRIT))
    kill_keepers(made, CULPRIT)
    made.release(JobId(str(CULPRIT)))
    assert runs(made, CULPRIT)

    assert kill_keepers(made, CULPRIT) == QUARANTINE_KEEPER_DEATHS


def lose(made: Stage, machine: StageMachine) -> None:
    """The task is lost with its node, which reconnects immediately with another boot id."""
    machine.crash()
    made.call(machine)


def test_only_repeated_losses_cost_a_backoff() -> None:
    made = stage()
    made.submit(job_spec(CULPRIT, retries=0))
    machine = made.machines["a"]

    lose(made, machine)
    assert runs(made, CULPRIT)
    lose(made, machine)
    assert not runs(made, CULPRIT)
    assert job(made, CULPRIT).phases[0] == bytes([Phase.PENDING])
    made.wait(FAULT_BACKOFF_FIRST_MS)
    assert runs(made, CULPRIT)


def test_a_try_that_lasted_resets_the_fault_count() -> None:
    made = stage()
    made.submit(job_spec(CULPRIT))
    machine = made.machines["a"]
    for _ in range(5):
        lose(made, machine)
        made.wait(FAULT_BACKOFF_MAX_MS + FAULT_RESET_MS)

    lose(made, machine)
    assert runs(made, CULPRIT)


def test_repeated_losses_lead_to_few_tries_per_hour() -> None:
    made = stage()
    made.submit(job_spec(CULPRIT))
    machine = made.machines["a"]
    for _ in range(3600):
        made.wait(1000)
        if runs(made, CULPRIT):
            lose(made, machine)

    assert tries(job(made, CULPRIT)) <= 10 + 3600_000 // (FAULT_BACKOFF_MAX_MS // 2)


@pytest.mark.parametrize("faults", range(2, 30))
def test_fault_backoff_doubles_up_to_a_bound(faults: int) -> None:
    names = [f"{number}/0/0" for number in random.Random(faults).sample(range(10**6), 100)]
    pauses = [fault_backoff_ms(faults, name) for name in names]
    whole_ms = min(FAULT_BACKOFF_MAX_MS, FAULT_BACKOFF_FIRST_MS * 2 ** (faults - 2))

    assert whole_ms // 2 <= min(pauses) < max(pauses) <= whole_ms
    assert fault_backoff_ms(1, names[0]) == 0
