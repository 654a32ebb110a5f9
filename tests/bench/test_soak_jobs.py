"""A job of a workload becomes a real job that ends as its behaviour demands."""

import os
import random
import subprocess
from typing import Any

import pytest

from bench.soak_jobs import NEVER_SECONDS, Scale, real_job, scale_of
from rota.apiserver.spec.job import parse_spec
from rota.sim.workloads.toml_file import Arrival, Behaviour, NodeGroup, Workload

CALM = Scale(
    speed=60, outage_seconds=0, cpu=0.1, memory=0.5, node_cpu=2, node_memory_bytes=2**30
)  # a tenth of the simulated cluster
CHAOS = CALM._replace(outage_seconds=20)
SHORT = Behaviour(median_ms=1)


def job(behaviour: Behaviour = SHORT, scale: Scale = CALM, **spec: Any) -> Any:
    given = {"name": "build", "command": ["make"], "count": 3, "cpu": 1.5, "memory": 2**20, **spec}
    return real_job(Arrival(0, given, behaviour), 7, scale, random.Random(1))


def run(command: list[str], index: int, attempt: int) -> int:
    variables = {"ROTA_INDEX": str(index), "ROTA_ATTEMPT": str(attempt), "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=variables, check=False).returncode


def test_a_real_job_is_accepted_by_the_server() -> None:
    made = job(timeout=600, retries=2, where=["region == eu"], gpu=1, run="at_most_once")

    spec = parse_spec(made.spec)
    assert (spec.name, spec.count, spec.retries) == ("build-7", 3, 2)
    assert spec.needs == {"cpu": 150, "memory": 2**19}
    assert spec.where == ()


@pytest.mark.parametrize(
    ("retries", "codes", "state"), [(2, [1, 0, 0], "succeeded"), (0, [1, 1, 1], "failed")]
)
def test_a_failing_task_fails_first_and_without_retries_always(
    retries: int, codes: list[int], state: str
) -> None:
    made = job(SHORT._replace(fail_share=1.0), retries=retries)

    assert [run(made.spec["command"], 1, attempt) for attempt in (1, 2, 3)] == codes
    assert made.may_end(1, state)
    assert not made.may_end(1, "lost")


def test_each_task_has_its_own_duration_scaled_to_the_soak() -> None:
    arguments = job(Behaviour(median_ms=60_000, sigma=1.0), count=5).spec["command"][4:]

    seconds = [float(argument.partition(",")[0]) for argument in arguments]
    assert len(set(seconds)) == 5
    assert 0.05 < min(seconds) < max(seconds) < 20


def test_a_large_array_repeats_its_tasks() -> None:
    made = job(count=5000)

    assert len(made.spec["command"]) == 4 + 1000
    assert run(made.spec["command"], 4321, 1) == 0
    assert made.may_end(4321, "succeeded")


def test_only_a_task_over_its_limit_times_out() -> None:
    over = job(Behaviour(median_ms=700_000), timeout=600)
    within = job(Behaviour(median_ms=500_000), timeout=600, scale=CHAOS)

    assert over.may_end(0, "timed_out")
    assert over.spec["timeout"] < NEVER_SECONDS / 10
    assert not within.may_end(0, "timed_out")
    assert within.spec["timeout"] > 500 / 60 + CHAOS.outage_seconds


def test_only_under_chaos_may_an_at_most_once_task_be_lost() -> None:
    assert not job(run="at_most_once").may_end(0, "lost")
    assert job(run="at_most_once", scale=CHAOS).may_end(0, "lost")
    assert not job(scale=CHAOS).may_end(0, "lost")


def test_needs_shrink_with_the_cluster_and_never_grow() -> None:
    workload = Workload("w", (NodeGroup(20, {"cpu": 8000, "memory": 32 * 2**30}, {}),))
    node = {"cpu": 2.0, "memory": 16.0 * 2**30}

    small = scale_of(workload, [node] * 5, speed=60, outage_seconds=0)
    large = scale_of(workload, [node] * 1000, speed=60, outage_seconds=0)
    assert (small.cpu, small.memory) == (10 / 160, 80 / 640)
    assert (large.cpu, large.memory) == (1.0, 1.0)
