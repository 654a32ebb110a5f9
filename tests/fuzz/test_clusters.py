"""Few odd specs, hostile peers and raw bytes: the cluster survives, and canary jobs finish."""

import pytest

from rota.apiserver.spec.job import SPEC_FIELDS
from tests.fuzz import jobs, peers, ports, specs
from tests.fuzz.arena import Arena, Outcomes

pytestmark = pytest.mark.system


def test_a_cluster_survives_odd_specs_and_updates(arena: Arena, outcomes: Outcomes) -> None:
    specs.fuzz(arena, 0, 250, outcomes)
    specs.sweep(arena, outcomes, range(0, specs.pairs_count(), 131))

    assert not outcomes.problems, str(outcomes)


def test_every_field_of_a_spec_is_fuzzed() -> None:
    assert set(specs.FIELDS) == set(SPEC_FIELDS)
    assert set(jobs.VALUES) == set(SPEC_FIELDS)


def test_a_cluster_survives_hostile_peers(arena: Arena, outcomes: Outcomes) -> None:
    peers.fuzz(arena, 0, 15, outcomes)
    arena.restart_server()
    arena.check()

    assert not outcomes.problems, str(outcomes)


def test_a_cluster_survives_raw_bytes_on_every_port(arena: Arena, outcomes: Outcomes) -> None:
    ports.fuzz(arena, 0, 96, outcomes)

    assert {kind.partition(":")[0] for kind in outcomes.counts} == {*ports.PORTS, "keeper"}
