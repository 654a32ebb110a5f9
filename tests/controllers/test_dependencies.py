"""Jobs with dependencies: what they wait for, when they start, and when they never do."""

import pytest

from rota.controllers import dependencies
from rota.engine.state.mirror import Mirror
from rota.model.dependency import Dependency, DependencyCondition
from rota.model.ids import JobId
from rota.model.job import JobIntent, JobStatus
from rota.model.lifecycle import JOB_ENDS, JobState
from rota.model.plan import NO_CHANGE, Plan
from rota.testing.builders import at, job_spec
from tests.controllers.one_node_stage import end, job, stage, state

MANY = 1_000


def waiting(*others: Dependency) -> Mirror:
    """A mirror in which job 9 has these dependencies."""
    mirror = Mirror()
    for number in (1, 2):
        mirror.apply(job_spec(number))
        mirror.apply(JobStatus(JobId(str(number)), JobState.ACTIVE))
    mirror.apply(job_spec(9, after=others))
    mirror.apply(JobStatus(JobId("9"), JobState.WAITING))
    return mirror


def states(plan: Plan) -> list[tuple[str, JobState]]:
    return [(status.id, status.state) for status in plan.puts if isinstance(status, JobStatus)]


@pytest.mark.parametrize("end_state", sorted(JOB_ENDS))
@pytest.mark.parametrize("on", list(DependencyCondition))
def test_every_end_decides_every_condition(on: DependencyCondition, end_state: JobState) -> None:
    mirror = waiting(Dependency(JobId("1"), on))
    mirror.apply(JobStatus(JobId("1"), end_state))
    decided = states(dependencies.decide(mirror, "1", at(5)))

    begins = {
        DependencyCondition.SUCCESS: end_state is JobState.SUCCEEDED,
        DependencyCondition.FAILURE: end_state in (JobState.FAILED, JobState.TIMED_OUT, JobState.REJECTED),
        DependencyCondition.ANY: True,
    }
    assert decided == [("9", JobState.ACTIVE if begins[on] else JobState.CANCELED)]


def test_nothing_happens_while_dependencies_run() -> None:
    mirror = waiting(Dependency(JobId("1")), Dependency(JobId("2")))
    mirror.apply(JobStatus(JobId("1"), JobState.SUCCEEDED))

    assert dependencies.decide(mirror, "1", at(5)) == NO_CHANGE
    assert dependencies.decide(mirror, "9", at(5)) == NO_CHANGE


def test_the_first_failed_dependency_ends_the_job_although_others_run() -> None:
    mirror = waiting(Dependency(JobId("1")), Dependency(JobId("2")))
    mirror.apply(JobStatus(JobId("1"), JobState.FAILED))
    (status,) = dependencies.decide(mirror, "1", at(5)).puts

    assert isinstance(status, JobStatus)
    assert status.state is JobState.CANCELED
    assert status.reason == "it waited for job 1 to succeed, which has failed"
    assert status.ended_at_ms is not None


def test_only_the_end_state_of_an_expired_job_is_known() -> None:
    assert states(dependencies.decide(waiting(Dependency(JobId("7"))), "9", at(5))) == [
        ("9", JobState.CANCELED)
    ]
    assert states(
        dependencies.decide(waiting(Dependency(JobId("7"), DependencyCondition.ANY)), "9", at(5))
    ) == [("9", JobState.ACTIVE)]


def test_a_decision_interrupted_by_a_crash_is_repeated() -> None:
    """The end of the dependency is durable, the start that follows from it is not."""
    mirror = waiting(Dependency(JobId("1")))
    mirror.apply(JobStatus(JobId("1"), JobState.SUCCEEDED))

    assert list(dependencies.start(mirror)) == ["9"]
    assert states(dependencies.decide(mirror, "9", at(5))) == [("9", JobState.ACTIVE)]


def test_started_or_deleted_dependents_are_ignored() -> None:
    mirror = waiting(Dependency(JobId("1")), Dependency(JobId("2")))
    assert mirror.dependents(JobId("1")) == ("9",)
    mirror.apply(JobStatus(JobId("9"), JobState.ACTIVE))
    assert mirror.dependents(JobId("1")) == ()


@pytest.mark.slow
def test_a_chain_of_a_thousand_jobs_runs_in_order() -> None:
    cluster = stage(cpu=1)
    for number in range(1, MANY + 1):
        cluster.submit(job_spec(number, after=() if number == 1 else (Dependency(JobId(str(number - 1))),)))
    for number in range(1, MANY + 1):
        assert state(cluster, number) is JobState.ACTIVE
        end(cluster, 0, 0, number)

    assert all(state(cluster, number) is JobState.SUCCEEDED for number in range(1, MANY + 1))


def test_the_failure_of_the_first_ends_a_chain_of_a_thousand() -> None:
    cluster = stage(cpu=1)
    for number in range(1, MANY + 1):
        cluster.submit(job_spec(number, after=() if number == 1 else (Dependency(JobId(str(number - 1))),)))
    end(cluster, 0, 1)

    assert all(state(cluster, number) is JobState.CANCELED for number in range(2, MANY + 1))


def test_one_job_waits_for_a_thousand_and_a_thousand_for_one() -> None:
    mirror, middle = Mirror(), JobId(str(MANY + 1))
    names = [JobId(str(number)) for number in range(1, MANY + 1)]
    later = [JobId(str(number)) for number in range(MANY + 2, 2 * MANY + 2)]
    for name in (*names, middle, *later):
        others = (
            ()
            if name in names
            else tuple(map(Dependency, names))
            if name == middle
            else (Dependency(middle),)
        )
        mirror.apply(job_spec(int(name), after=others))
        mirror.apply(JobStatus(name, JobState.ACTIVE if name in names else JobState.WAITING))
    begun: list[tuple[str, JobState]] = []
    for name in names:
        assert mirror.dependents(name) == (middle,)
        mirror.apply(JobStatus(name, JobState.SUCCEEDED))
        begun = states(dependencies.decide(mirror, name, at(0)))

    assert begun == [(middle, JobState.ACTIVE)]
    mirror.apply(JobStatus(middle, JobState.SUCCEEDED))
    assert states(dependencies.decide(mirror, middle, at(0))) == [(name, JobState.ACTIVE) for name in later]


def test_a_waiting_job_whose_tasks_were_all_canceled_ends() -> None:
    cluster = stage()
    cluster.submit(job_spec(1))
    cluster.submit(job_spec(2, count=2, after=(Dependency(JobId("1")),)))
    cluster.put(JobIntent(JobId("2"), cancel_tasks={0: False}, reason="not needed"))
    cluster.run_to_quiescence()
    before = state(cluster, 2)
    cluster.put(JobIntent(JobId("2"), cancel_tasks={0: False, 1: True}, reason="not needed"))
    cluster.run_to_quiescence()

    assert (before, state(cluster, 2)) == (JobState.WAITING, JobState.CANCELED)
    assert job(cluster, 2).status.reason == "not needed"  # type: ignore[union-attr]
