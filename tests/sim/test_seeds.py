"""Every invariant holds on 60 seeds, at night on 200, and on all that ever failed; runs are deterministic."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from rota.sim.scenario import run, scenario

EVER_FAILED = Path(__file__).with_name("seeds.txt")
SEEDS = 200
BY_DAY = 60  # in `make test`; the others take a minute of both cores
CHUNK = 20
TWICE = range(0, SEEDS, 10)
DIGESTS = """
import sys
from rota.sim.scenario import run, scenario
for seed in map(int, sys.argv[1:]):
    print(seed, run(scenario(seed), keep_trace=False).digest)
"""


def ever_failed() -> dict[int, str]:
    """The seeds that failed once, with what each of them found."""
    lines = EVER_FAILED.read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"(\d+): (\S.*)", line) for line in lines if line and not line.startswith("#")]
    assert all(found), "each line is a seed, a colon and a sentence"
    return {int(line[1]): line[2] for line in found if line is not None}


def chunks() -> list[ParameterSet]:
    by_day = list(dict.fromkeys([*range(BY_DAY), *sorted(ever_failed())]))
    at_night = [seed for seed in range(BY_DAY, SEEDS) if seed not in by_day]
    return [*_cut(by_day), *_cut(at_night, pytest.mark.nightly)]


def _cut(seeds: list[int], *marks: pytest.MarkDecorator) -> list[ParameterSet]:
    parts = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    return [pytest.param(part, id=f"{part[0]}-{part[-1]}", marks=marks) for part in parts]


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", chunks())
def test_every_invariant_holds(seeds: list[int]) -> None:
    broken = {seed: run(scenario(seed), keep_trace=False).broken for seed in seeds}

    assert {seed: why for seed, why in broken.items() if why is not None} == {}


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    outputs = [digests("1"), digests("4242")]

    assert len(outputs[0].splitlines()) == len(TWICE)
    assert outputs[0] == outputs[1]


def digests(hash_seed: str) -> str:
    command = [sys.executable, "-c", DIGESTS, *map(str, TWICE)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_one_seed_gives_one_scenario_and_another_seed_another() -> None:
    assert scenario(7) == scenario(7)
    assert scenario(7) != scenario(8)


def test_leaving_out_the_trace_changes_nothing() -> None:
    case = scenario(3)
    case = case._replace(arrivals=case.arrivals[:1], faults=case.faults[:2])
    with_trace, without = run(case), run(case, keep_trace=False)

    assert with_trace.trace
    assert not without.trace
    assert with_trace.digest == without.digest


def test_each_seed_that_ever_failed_is_named_once_with_a_sentence() -> None:
    numbers = re.findall(r"(?m)^(\d+):", EVER_FAILED.read_text(encoding="utf-8"))

    assert len(numbers) == len(set(numbers)) == len(ever_failed())
