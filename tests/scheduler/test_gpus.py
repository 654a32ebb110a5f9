"""GPUs by the thousandth: which devices, never more than there is, and nodes that fill up."""

from typing import Any

from msgspec.structs import replace

from rota.engine.state.mirror import Mirror
from rota.engine.state.what_if import WhatIfMirror
from rota.model.ids import JobId
from rota.model.job import Counters
from rota.model.messages import ReportedState
from rota.testing.builders import GIB, add_job, add_node, job_spec, placements, where
from tests.scheduler.rounds import Rounds

BOX = {"cpu": 64_000, "memory": 256 * GIB, "gpu": 4000}


def submit(rounds: Rounds, number: int, gpu: int, **fields: Any) -> JobId:
    rounds.mirror.apply(Counters(jobs=number))
    needs = {"cpu": 1000, "memory": GIB, **({"gpu": gpu} if gpu else {})}
    return add_job(rounds.mirror, job_spec(number, **{"needs": needs} | fields))


def devices(mirror: Mirror, job: JobId) -> list[int]:
    return list(mirror.jobs[job].attempts[0].gpus.values())


def test_shares_that_fit_together_use_one_device() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX)
    half = submit(rounds, 1, 500, count=4)
    rounds.go()

    assert devices(rounds.mirror, half) == [1, 1, 2, 2]


def test_whole_devices_are_wholly_free_and_each_has_one_owner() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX)
    part = submit(rounds, 1, 300)
    whole = submit(rounds, 2, 2000)
    rounds.go()
    third = submit(rounds, 3, 2000)
    rounds.go(10)

    assert devices(rounds.mirror, part) == [0b0001]
    assert devices(rounds.mirror, whole) == [0b0110]
    assert placements(rounds.mirror, third) == {}


def test_a_share_waits_although_the_free_total_would_suffice() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX | {"gpu": 2000})
    large = submit(rounds, 1, 600, count=2)
    half = submit(rounds, 2, 500)
    rounds.go()
    before = placements(rounds.mirror, half)
    rounds.report("a", 1, ReportedState.EXITED, (1, 1), exit_code=0)
    rounds.go(10)

    assert devices(rounds.mirror, large) == [1, 2]
    assert (before, placements(rounds.mirror, half)) == ({}, {0: "a"})
    assert devices(rounds.mirror, half) == [2]


def test_an_ended_attempt_releases_its_devices() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX | {"gpu": 1000})
    first = submit(rounds, 1, 1000)
    rounds.go()
    second = submit(rounds, 2, 1000)
    rounds.go(10)
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0)
    rounds.go(20)

    assert devices(rounds.mirror, first) == devices(rounds.mirror, second) == [1]
    assert rounds.mirror.node_table.devices[0].tolist() == [1000]


def test_a_gpu_model_can_be_requested() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX, labels={"gpu_model": "T4"})
    add_node(rounds.mirror, "b", BOX, labels={"gpu_model": "A100"})
    job = submit(rounds, 1, 1000, where=(where("gpu_model", "==", "A100"),))
    rounds.go()

    assert placements(rounds.mirror, job) == {0: "b"}


def test_tasks_without_gpus_avoid_gpu_nodes_while_others_fit() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX)
    add_node(rounds.mirror, "b", {"cpu": 2000, "memory": 8 * GIB})
    job = submit(rounds, 1, 0, count=3)
    rounds.go()

    assert placements(rounds.mirror, job) == {0: "b", 1: "b", 2: "a"}


def test_small_shares_fill_the_started_node_and_leave_the_other_whole() -> None:
    rounds = Rounds()
    for node in ("a", "b"):
        add_node(rounds.mirror, node, BOX)
    submit(rounds, 1, 4000, expect_seconds=1.0)
    rounds.go()
    taken = placements(rounds.mirror, JobId("1"))[0]
    rounds.report(taken, 1, ReportedState.EXITED, (0, 1), exit_code=0)
    parts = [submit(rounds, number, 250) for number in range(2, 10)]
    rounds.go(10)

    assert len({placements(rounds.mirror, job)[0] for job in parts}) == 1


# ---- an update that removes the GPUs


def revise(rounds: Rounds, number: int, gpu: int) -> None:
    """Update how many thousandths of a GPU the job requests."""
    spec = rounds.mirror.jobs[JobId(str(number))].spec
    needs = {"cpu": 1000, "memory": GIB, **({"gpu": gpu} if gpu else {})}
    rounds.mirror.apply(replace(spec, needs=needs, version=spec.version + 1))


def loaded_afresh(mirror: Mirror) -> Mirror:
    again = Mirror()
    again.now_ms = mirror.now_ms
    again.load(WhatIfMirror.copy_of(mirror).records)
    return again


def reserved_devices(mirror: Mirror) -> list[int]:
    found: list[int] = mirror.node_table.devices[0].tolist()
    return found


def test_retry_after_update_without_gpu_has_no_devices() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX)
    job = submit(rounds, 1, 1000, retries=1)
    rounds.go()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=1)
    revise(rounds, 1, 0)
    rounds.go(100_000)

    assert placements(rounds.mirror, job) == {0: "a"}
    assert rounds.mirror.jobs[job].attempts[0].gpus == {}
    assert reserved_devices(rounds.mirror) == [0, 0, 0, 0]


def test_devices_of_a_running_attempt_stay_reserved_after_an_update_without_gpu() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX)
    submit(rounds, 1, 500)
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1))
    revise(rounds, 1, 0)

    assert reserved_devices(rounds.mirror) == [1000, 0, 0, 0]
    assert reserved_devices(loaded_afresh(rounds.mirror)) == [1000, 0, 0, 0]
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0)
    assert reserved_devices(rounds.mirror) == [0, 0, 0, 0]


def test_an_attempt_releases_the_share_it_allocated() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", BOX)
    submit(rounds, 1, 300)
    rounds.go()
    rounds.report("a", 1, ReportedState.RUNNING, (0, 1))
    revise(rounds, 1, 700)

    assert reserved_devices(rounds.mirror) == reserved_devices(loaded_afresh(rounds.mirror))
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0)
    assert reserved_devices(rounds.mirror) == [0, 0, 0, 0]
