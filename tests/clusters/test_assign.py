"""A new job gets its cluster, once; the default cluster always exists."""

from rota.clusters import assign
from rota.engine.mirror import Mirror
from rota.model.cluster import DEFAULT, Cluster
from rota.model.job import JobCluster, JobSpec
from rota.model.plan import NOTHING
from rota.testing.builders import at, job_spec


def test_the_default_cluster_is_made_at_the_first_start_only() -> None:
    mirror = Mirror()
    (first,) = assign.decide(mirror, "default", at(0)).puts
    mirror.apply(first)

    assert first == Cluster(DEFAULT)
    assert assign.decide(mirror, "default", at(0)) is NOTHING


def test_a_job_gets_the_only_cluster_there_is() -> None:
    mirror = Mirror()
    spec = job_spec()
    mirror.apply(spec)
    plan = assign.decide(mirror, spec.id, at(0))

    assert plan.puts == (JobCluster(spec.id, DEFAULT),)
    assert plan.why == "job 1 is for the only cluster there is"


def test_a_job_keeps_the_cluster_it_has() -> None:
    mirror = Mirror()
    spec = job_spec()
    mirror.apply(spec)
    mirror.apply(JobCluster(spec.id, "other"))

    assert assign.decide(mirror, spec.id, at(0)) is NOTHING


def test_a_job_that_is_not_there_is_left_alone() -> None:
    assert assign.decide(Mirror(), "7", at(0)) is NOTHING


def test_only_a_spec_wakes_it() -> None:
    assert list(assign.RECONCILER.wakes) == [JobSpec]
    assert list(assign.RECONCILER.wakes[JobSpec](job_spec())) == ["1"]


def test_after_a_start_the_default_and_every_job_without_a_cluster_are_looked_at() -> None:
    mirror = Mirror()
    for number in (1, 2):
        mirror.apply(job_spec(number))
    mirror.apply(JobCluster(job_spec(1).id, DEFAULT))

    assert list(assign.start(mirror)) == ["default", "2"]
