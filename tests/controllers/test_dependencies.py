"""Jobs that wait for others: what they wait for, when they begin, and when they never do."""

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
    """Job 9 waits for these."""
    mirror = Mirror()
    for number in (1, 2):
        mirror.apply(job_spec(number))
        mirror.apply(JobStatus(JobId(str(number)), JobState.ACTIVE))
    mirror.apply(job_spec(9, after=others))
    mirror.apply(JobStatus(JobId("9"), JobState.WAITING))
    return mirror


def states(plan: Plan) -> list[tuple[str, JobState]]:
    return [(one.id, one.state) for one in plan.puts if isinstance(one, JobStatus)]


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


def test_nothing_happens_while_others_run() -> None:
    mirror = waiting(Dependency(JobId("1")), Dependency(JobId("2")))
    mirror.apply(JobStatus(JobId("1"), JobState.SUCCEEDED))

    assert dependencies.decide(mirror, "1", at(5)) == NO_CHANGE
    assert dependencies.decide(mirror, "9", at(5)) == NO_CHANGE


def test_the_first_condition_that_cannot_hold_ends_it_though_others_run() -> None:
    mirror = waiting(Dependency(JobId("1")), Dependency(JobId("2")))
    mirror.apply(JobStatus(JobId("1"), JobState.FAILED))
    (status,) = dependencies.decide(mirror, "1", at(5)).puts

    assert isinstance(status, JobStatus)
    assert status.state is JobState.CANCELED
    assert status.reason == "it waited for job 1 to succeed, which has failed"
    assert status.ended_at_ms is not None


def test_of_a_job_that_is_gone_only_its_end_is_known() -> None:
    assert states(dependencies.decide(waiting(Dependency(JobId("7"))), "9", at(5))) == [
        ("9", JobState.CANCELED)
    ]
    assert states(
        dependencies.decide(waiting(Dependency(JobId("7"), DependencyCondition.ANY)), "9", at(5))
    ) == [("9", JobState.ACTIVE)]


def test_a_look_that_a_crash_cut_off_is_taken_again() -> None:
    """The other's end is on disk, what follows from it is not."""
    mirror = waiting(Dependency(JobId("1")))
    mirror.apply(JobStatus(JobId("1"), JobState.SUCCEEDED))

    assert list(dependencies.start(mirror)) == ["9"]
    assert states(dependencies.decide(mirror, "9", at(5))) == [("9", JobState.ACTIVE)]


def test_who_has_begun_or_is_gone_is_not_waited_for_any_more() -> None:
    mirror = waiting(Dependency(JobId("1")), Dependency(JobId("2")))
    assert mirror.dependents(JobId("1")) == ("9",)
    mirror.apply(JobStatus(JobId("9"), JobState.ACTIVE))
    assert mirror.dependents(JobId("1")) == ()


@pytest.mark.slow
def test_a_chain_of_a_thousand_jobs_runs_in_order() -> None:
    made = stage(cpu=1)
    for number in range(1, MANY + 1):
        made.submit(job_spec(number, after=() if number == 1 else (Dependency(JobId(str(number - 1))),)))
    for number in range(1, MANY + 1):
        assert state(made, number) is JobState.ACTIVE
        end(made, 0, 0, number)

    assert all(state(made, number) is JobState.SUCCEEDED for number in range(1, MANY + 1))


def test_the_failure_of_the_first_ends_a_chain_of_a_thousand() -> None:
    made = stage(cpu=1)
    for number in range(1, MANY + 1):
        made.submit(job_spec(number, after=() if number == 1 else (Dependency(JobId(str(number - 1))),)))
    end(made, 0, 1)

    assert all(state(made, number) is JobState.CANCELED for number in range(2, MANY + 1))


def test_one_job_waits_for_a_thousand_and_a_thousand_for_one() -> None:
    mirror, one = Mirror(), JobId(str(MANY + 1))
    names = [JobId(str(number)) for number in range(1, MANY + 1)]
    later = [JobId(str(number)) for number in range(MANY + 2, 2 * MANY + 2)]
    for name in (*names, one, *later):
        others = () if name in names else tuple(map(Dependency, names)) if name == one else (Dependency(one),)
        mirror.apply(job_spec(int(name), after=others))
        mirror.apply(JobStatus(name, JobState.ACTIVE if name in names else JobState.WAITING))
    begun: list[tuple[str, JobState]] = []
    for name in names:
        assert mirror.dependents(name) == (one,)
        mirror.apply(JobStatus(name, JobState.SUCCEEDED))
        begun = states(dependencies.decide(mirror, name, at(0)))

    assert begun == [(one, JobState.ACTIVE)]
    mirror.apply(JobStatus(one, JobState.SUCCEEDED))
    assert states(dependencies.decide(mirror, one, at(0))) == [(name, JobState.ACTIVE) for name in later]


def test_a_job_of_which_every_task_was_canceled_ends_before_its_turn_comes() -> None:
    made = stage()
    made.submit(job_spec(1))
    made.submit(job_spec(2, count=2, after=(Dependency(JobId("1")),)))
    made.put(JobIntent(JobId("2"), cancel_tasks={0: False}, reason="not needed"))
    made.run_to_quiescence()
    before = state(made, 2)
    made.put(JobIntent(JobId("2"), cancel_tasks={0: False, 1: True}, reason="not needed"))
    made.run_to_quiescence()

    assert (before, state(made, 2)) == (JobState.WAITING, JobState.CANCELED)
    assert job(made, 2).status.reason == "not needed"  # type: ignore[union-attr]
