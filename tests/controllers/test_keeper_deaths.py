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


def runs(cluster: Stage, number: int, index: int = 0) -> bool:
    return any((JobId(str(number)), index) in machine.held for machine in cluster.machines.values())


def is_held(cluster: Stage, number: int) -> bool:
    return job(cluster, number).task_counts.held > 0


def tries(entry: JobEntry) -> int:
    return max(
        (ints(task, "wanted")[at] for task in entry.tasks.values() for at in range(task.size)), default=0
    )


def kill_keepers(cluster: Stage, culprit: int, until_held: int = 100) -> int:
    """Let the culprit kill the keeper whenever it runs, until it is held; returns how often it did."""
    for deaths in range(until_held):
        for _ in range(FAULT_BACKOFF_MAX_MS // 100):
            if runs(cluster, culprit) or is_held(cluster, culprit):
                break
            cluster.now_ms += 100
            cluster.run_to_quiescence()
        if is_held(cluster, culprit):
            return deaths
        where = next(
            machine for machine in cluster.machines.values() if (JobId(str(culprit)), 0) in machine.held
        )
        where.lose_keeper(cluster.now.wall_ms)
        cluster.now_ms += 5
        cluster.run_to_quiescence()
    raise AssertionError(f"not held after {until_held} deaths")


def test_a_task_that_kills_its_keeper_is_held_and_says_why() -> None:
    cluster = stage()
    cluster.submit(job_spec(CULPRIT))

    assert kill_keepers(cluster, CULPRIT) == QUARANTINE_KEEPER_DEATHS
    assert job(cluster, CULPRIT).tasks[0].reasons == {0: "the keeper died 3 times while it ran there: on a"}


def test_neighbours_of_a_poison_task_are_not_held() -> None:
    """For many jitters: they follow from the numbers of the jobs."""
    held = 0
    for number in range(2, 42):
        cluster = stage()
        cluster.submit(job_spec(number))
        cluster.submit(job_spec(CULPRIT))

        assert kill_keepers(cluster, CULPRIT) <= 2 * QUARANTINE_KEEPER_DEATHS_TIED
        held += is_held(cluster, number)
        cluster.wait(FAULT_BACKOFF_MAX_MS)
        assert is_held(cluster, number) or runs(cluster, number), "it continues"

    assert held <= 1


def test_deaths_that_a_held_task_explains_do_not_count_against_its_neighbour_later() -> None:
    cluster = stage()
    cluster.submit(job_spec(CULPRIT))
    cluster.submit(job_spec(NEIGHBOUR))
    kill_keepers(cluster, CULPRIT)
    cluster.wait(FAULT_BACKOFF_MAX_MS)
    assert runs(cluster, NEIGHBOUR)
    cluster.submit(job_spec(3))

    kill_keepers(cluster, 3)

    assert not is_held(cluster, NEIGHBOUR)


def test_every_task_of_an_array_that_kills_keepers_is_held() -> None:
    cluster = stage()
    cluster.submit(job_spec(CULPRIT, count=3))
    cluster.submit(job_spec(NEIGHBOUR))
    for _ in range(3 * QUARANTINE_KEEPER_DEATHS_TIED):
        cluster.wait(FAULT_BACKOFF_MAX_MS)
        if not any(runs(cluster, CULPRIT, index) for index in range(3)):
            break
        cluster.machines["a"].lose_keeper(cluster.now.wall_ms)
        cluster.run_to_quiescence()

    assert job(cluster, CULPRIT).task_counts.held == 3


def test_a_released_task_starts_with_a_clean_record() -> None:
    cluster = stage()
    cluster.submit(job_spec(CULPRIT))
    kill_keepers(cluster, CULPRIT)
    cluster.release(JobId(str(CULPRIT)))
    assert runs(cluster, CULPRIT)

    assert kill_keepers(cluster, CULPRIT) == QUARANTINE_KEEPER_DEATHS


def lose(cluster: Stage, machine: StageMachine) -> None:
    """The task is lost with its node, which reconnects immediately with another boot id."""
    machine.crash()
    cluster.call(machine)


def test_only_repeated_losses_cost_a_backoff() -> None:
    cluster = stage()
    cluster.submit(job_spec(CULPRIT, retries=0))
    machine = cluster.machines["a"]

    lose(cluster, machine)
    assert runs(cluster, CULPRIT)
    lose(cluster, machine)
    assert not runs(cluster, CULPRIT)
    assert job(cluster, CULPRIT).phases[0] == bytes([Phase.PENDING])
    cluster.wait(FAULT_BACKOFF_FIRST_MS)
    assert runs(cluster, CULPRIT)


def test_a_try_that_lasted_resets_the_fault_count() -> None:
    cluster = stage()
    cluster.submit(job_spec(CULPRIT))
    machine = cluster.machines["a"]
    for _ in range(5):
        lose(cluster, machine)
        cluster.wait(FAULT_BACKOFF_MAX_MS + FAULT_RESET_MS)

    lose(cluster, machine)
    assert runs(cluster, CULPRIT)


def test_repeated_losses_lead_to_few_tries_per_hour() -> None:
    cluster = stage()
    cluster.submit(job_spec(CULPRIT))
    machine = cluster.machines["a"]
    for _ in range(3600):
        cluster.wait(1000)
        if runs(cluster, CULPRIT):
            lose(cluster, machine)

    assert tries(job(cluster, CULPRIT)) <= 10 + 3600_000 // (FAULT_BACKOFF_MAX_MS // 2)


@pytest.mark.parametrize("faults", range(2, 30))
def test_fault_backoff_doubles_up_to_a_bound(faults: int) -> None:
    names = [f"{number}/0/0" for number in random.Random(faults).sample(range(10**6), 100)]
    pauses = [fault_backoff_ms(faults, name) for name in names]
    whole_ms = min(FAULT_BACKOFF_MAX_MS, FAULT_BACKOFF_FIRST_MS * 2 ** (faults - 2))

    assert whole_ms // 2 <= min(pauses) < max(pauses) <= whole_ms
    assert fault_backoff_ms(1, names[0]) == 0
