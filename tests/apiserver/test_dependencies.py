"""Dependencies between jobs, as users name them."""

import pytest

from rota.apiserver.admission import submission
from rota.apiserver.admission.dry_run import parse_plan_request
from rota.apiserver.spec.job import parse_spec
from rota.engine.state.mirror import Mirror
from rota.model import limits
from rota.model.dependency import Dependency, DependencyCondition
from rota.model.errors import Conflict, Rejected
from rota.model.ids import JobId
from rota.model.job import JobSpec, JobStatus
from rota.model.lifecycle import JobState
from rota.model.outlook import PlanOutcome
from tests.apiserver.builders import ADA, NOW, spec
from tests.apiserver.test_submission import applied, with_jobs


def submitted(mirror: Mirror, after: object) -> JobSpec:
    plan = submission.submit_job(mirror, {"command": ["true"], "after": after}, ADA, None, NOW)
    return next(record for record in plan.puts if isinstance(record, JobSpec))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("1", [Dependency(JobId("1"))]),
        (
            ["1:failure", "2:any"],
            [
                Dependency(JobId("1"), DependencyCondition.FAILURE),
                Dependency(JobId("2"), DependencyCondition.ANY),
            ],
        ),
        ([{"job": "build", "on": "success"}], [Dependency(JobId("2"))]),
        ([{"job": 1}], [Dependency(JobId("1"))]),
        ("build", [Dependency(JobId("2"))]),
        ("last:failure", [Dependency(JobId("2"), DependencyCondition.FAILURE)]),
        (["2", "build"], [Dependency(JobId("2"))]),
        ([], []),
    ],
)
def test_a_dependency_is_named_like_any_job_and_stored_by_id(
    after: object, expected: list[Dependency]
) -> None:
    mirror = with_jobs(spec(1), spec(2, name="build"))

    assert list(submitted(mirror, after).after) == expected


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        ("7", "no job is called '7'"),
        ("1:success:any", "after: 'success:any' is not a condition"),
        ("1:done", "after: 'done' is not a condition"),
        ("1:", "after: '' is not a condition"),
        ([{"on": "any"}], "after: names no job"),
        ([{"job": "1", "no": "any"}], "no: is not a known field"),
        ([None], "after: names no job"),
        (True, "after: is not a list of jobs"),
        (["1"] * (limits.AFTER_MAX + 1), "after: names 1001 jobs"),
    ],
)
def test_an_invalid_dependency_is_refused_with_the_field(after: object, problem: str) -> None:
    with pytest.raises(Rejected) as refused:
        submitted(with_jobs(spec(1)), after)

    assert refused.value.detail == problem
    assert refused.value.hint


def test_a_repeated_submit_is_the_same_job_though_a_name_refers_to_another_now() -> None:
    mirror = with_jobs(spec(1, name="build"))
    body = {"command": ["true"], "after": "build"}
    applied(mirror, submission.submit_job(mirror, body, ADA, "key", NOW))
    applied(mirror, submission.submit_job(mirror, {"command": ["true"], "name": "build"}, ADA, None, NOW))

    assert submission.submit_job(mirror, body, ADA, "key", NOW).answer == submission.SubmitResult(
        JobId("2"), new=False
    )


def test_a_job_with_waiting_dependents_cannot_be_deleted() -> None:
    mirror = with_jobs(spec(1))
    mirror.apply(JobStatus(JobId("1"), JobState.SUCCEEDED))
    applied(mirror, submission.submit_job(mirror, {"command": ["true"], "after": ["1"]}, ADA, None, NOW))
    with pytest.raises(Conflict) as refused:
        submission.delete_job(mirror, "1", ADA)
    mirror.apply(JobStatus(JobId("2"), JobState.ACTIVE))

    assert refused.value.detail == "job 2 depends on how job 1 ended"
    assert submission.delete_job(mirror, "1", ADA).answer == "1"


def test_a_plan_tells_which_dependency_it_would_wait_for() -> None:
    mirror = with_jobs(spec(1), spec(2))
    mirror.apply(JobStatus(JobId("2"), JobState.FAILED))
    body = {"command": ["true"], "after": ["1", "2:failure"]}
    before = parse_plan_request(mirror, body, ADA, NOW).certain_outcome
    never = parse_plan_request(mirror, body | {"after": ["1", "2"]}, ADA, NOW).certain_outcome
    free = parse_plan_request(mirror, body | {"after": ["2:any"]}, ADA, NOW).certain_outcome

    assert before is not None
    assert before.sentence == "would wait: for job 1 to succeed"
    assert never is not None
    assert never.outcome is PlanOutcome.NEVER
    assert free is None


def test_a_job_cannot_depend_on_itself_so_there_is_no_cycle() -> None:
    """Its own id is not assigned yet when its dependencies are resolved."""
    mirror = with_jobs(spec(1))
    with pytest.raises(Rejected):
        submitted(mirror, "2")

    assert parse_spec({"command": ["true"], "after": "2"}).after == (Dependency(JobId("2")),)
