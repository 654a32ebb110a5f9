"""A memory store under restarts of its server: every invariant holds, and jobs are adopted."""

from collections import Counter

import pytest

from rota.sim.memory_scenario import memory_store_seed
from rota.sim.scenario import run

BY_DAY, SEEDS, CHUNK = 40, 200, 20


def chunks() -> list[object]:
    return [
        pytest.param(
            range(first, first + CHUNK),
            id=f"{first}-{first + CHUNK - 1}",
            marks=() if first < BY_DAY else pytest.mark.nightly,
        )
        for first in range(0, SEEDS, CHUNK)
    ]


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", chunks())
def test_every_invariant_holds_over_restarts_that_lose_jobs(seeds: range) -> None:
    found = {seed: run(memory_store_seed(seed), keep_trace=False) for seed in seeds}

    assert {seed: finding.broken for seed, finding in found.items() if finding.broken is not None} == {}
    met: Counter[str] = Counter()
    for finding in found.values():
        met.update(finding.counts)
    assert met["store: its memory was lost"] > len(seeds)
    assert met["server: adopted a job from a node"] > len(seeds)


def test_one_seed_gives_one_scenario() -> None:
    assert memory_store_seed(7) == memory_store_seed(7)
    assert memory_store_seed(7) != memory_store_seed(8)
    assert memory_store_seed(7).size.forgets
