"""The estimated number of nodes equals the result of trying every number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.engine.state.mirror import Mirror
from rota.engine.state.what_if import WhatIfMirror
from rota.model.cluster import ClusterIntent, ClusterRecord, ScaleEstimate
from rota.model.job import JobSpec
from rota.model.namespace import NamespaceRecord
from rota.model.shape import Policy
from rota.scheduler.round import SchedulerSettings
from rota.scheduler.scale_estimate import _ScaleTrials as Trials
from rota.scheduler.scale_estimate import estimate_scale
from rota.testing.builders import add_job, add_node, at, job_spec

WISH = ClusterIntent("default", provider="p", capacity={"cpu": 4000}, max_nodes=100)


def mirror_with(*specs: JobSpec) -> Mirror:
    mirror = Mirror()
    mirror.apply(ClusterRecord("default"))
    for spec in specs:
        add_job(mirror, spec)
    return mirror


@pytest.mark.parametrize(
    ("specs", "growth"),
    [
        ([job_spec(1, count=9)], ScaleEstimate(9, 3, 9)),
        ([job_spec(1, count=100)], ScaleEstimate(100, 8, 32)),
        ([job_spec(1, count=100, parallel=5)], ScaleEstimate(100, 2, 5)),
        ([job_spec(1, needs={"cpu": 5000})], ScaleEstimate(1, 0, 0)),
        ([job_spec(1, count=3, gang=True), job_spec(2, count=2)], ScaleEstimate(5, 2, 5)),
        ([job_spec(1, count=40, gang=True)], ScaleEstimate(40, 0, 0)),
        ([job_spec(1, needs={"cpu": 3000}), job_spec(2, needs={"cpu": 3000})], ScaleEstimate(2, 2, 2)),
    ],
)
def test_the_fewest_nodes_with_which_as_many_start_as_with_the_most(
    specs: list[JobSpec], growth: ScaleEstimate
) -> None:
    assert estimate_scale(mirror_with(*specs), WISH, 0, 8, at(0)) == growth


def test_machines_being_created_count_as_present() -> None:
    mirror = mirror_with(job_spec(1, count=9))

    assert estimate_scale(mirror, WISH, 2, 8, at(0)) == ScaleEstimate(1, 1, 1)
    assert estimate_scale(mirror, WISH, 3, 8, at(0)) == ScaleEstimate(0, 0, 0)


def test_existing_nodes_with_free_resources_are_used_first() -> None:
    mirror = mirror_with(job_spec(1, count=9))
    add_node(mirror, "a", {"cpu": 8000})

    assert estimate_scale(mirror, WISH, 0, 8, at(0)) == ScaleEstimate(1, 1, 1)


def test_a_quota_that_holds_a_job_back_asks_for_no_nodes() -> None:
    mirror = mirror_with(job_spec(1, count=9))
    mirror.apply(NamespaceRecord("default", {"cpu": 4000}))

    assert estimate_scale(mirror, WISH, 0, 8, at(0)) == ScaleEstimate(9, 1, 4)


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([500, 1000, 1500, 3000, 4000]), st.booleans()),
        max_size=4,
    ),
    st.integers(0, 2),
)
def test_the_estimate_equals_trying_every_number(jobs: list[tuple[int, int, bool]], coming: int) -> None:
    specs = [
        job_spec(n, count=count, needs={"cpu": cpu}, policy=Policy.PACK if pack else Policy.SPREAD)
        for n, (count, cpu, pack) in enumerate(jobs, 1)
    ]
    mirror = mirror_with(*specs)
    growth = estimate_scale(mirror, WISH, coming, 6, at(0))
    trials = Trials(WhatIfMirror.copy_of(mirror), WISH, coming, at(0), SchedulerSettings())
    left = [trials.run(more).unplaced for more in range(growth.nodes + 1)]

    assert left[0] == growth.waiting
    assert left[growth.nodes] <= growth.waiting - growth.starts
    assert growth.nodes == 0 or left[growth.nodes - 1] > left[growth.nodes]
