"""Retry fields of a spec: parsed, or refused by the name of the field."""

from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views import job_spec
from rota.model.errors import BadField
from rota.model.recovery import PLAIN, Failure, Retry

JOB = {"command": ["true"]}


def test_a_number_alone_is_the_short_form() -> None:
    spec = parse_spec({**JOB, "retries": 3})

    assert (spec.retries, spec.retry) == (3, PLAIN)
    assert parse_spec({**JOB, "retry": {"attempts": 3}}) == spec


def test_the_table_has_causes_and_delays() -> None:
    table = {
        "attempts": 3,
        "on": [75, "oom", "75"],
        "fail_on": 2,
        "delay": "5s",
        "delay_max": "2m",
        "jitter": 0,
    }
    spec = parse_spec({**JOB, "retry": table})

    assert spec.retries == 3
    assert spec.retry == Retry((Failure.OOM,), (75,), (2,), 5_000, 120_000, 0)


def test_the_most_common_entries_have_short_fields() -> None:
    spec = parse_spec({**JOB, "retries": 1, "retry_on": ["signal", 1], "fail_on": [2, 3]})

    assert spec.retry == Retry((Failure.SIGNAL,), (1,), (2, 3))


def test_shown_retries_can_be_submitted_again() -> None:
    table = {"on": [75, "oom"], "fail_on": [2], "delay": "90s"}
    spec = parse_spec({**JOB, "retries": 3, "retry": table})
    shown = {name: value for name, value in job_spec.spec_json(spec).items() if name in ("retries", "retry")}

    assert shown["retry"] == {
        "on": [75, "oom"],
        "fail_on": [2],
        "delay": 90.0,
        "delay_max": 90.0,
        "jitter": 0.2,
    }
    assert parse_spec({**JOB, **shown}).retry == spec.retry
    assert "retry" not in job_spec.spec_json(parse_spec(JOB))


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"retry_on": [1, 2], "fail_on": [2]}, "fail_on", "2 is in retry_on as well"),
        ({"retry": {"on": [1], "fail_on": [1]}}, "retry.fail_on", "1 is in retry.on as well"),
        ({"retry_on": [256]}, "retry_on", "256 is not an exit code"),
        ({"retry_on": [0]}, "retry_on", "0 is not an exit code"),
        ({"fail_on": [-1]}, "fail_on", "-1 is not an exit code"),
        ({"fail_on": ["oom"]}, "fail_on", "oom is not an exit code"),
        ({"retry_on": ["nonsense"]}, "retry_on", "nonsense is not an exit code"),
        ({"retry_on": [10**400]}, "retry_on", "is not an exit code"),
        ({"retry_on": [True]}, "retry_on", "not a list of exit codes"),
        ({"retry_on": {"a": 1}}, "retry_on", "not a list of exit codes"),
        ({"retry_on": [1.5]}, "retry_on", "not a list of exit codes"),
        ({"retry_on": [1] * 65}, "retry_on", "has 65 entries"),
        ({"retry": 3}, "retry", "is not an object"),
        ({"retry": {"times": 3}}, "retry.times", "is not a known field"),
        ({"retry": {"attempts": -1}}, "retry.attempts", "out of range"),
        ({"retry": {"attempts": 1}, "retries": 1}, "retries", "conflicts with retry.attempts"),
        ({"retry": {"delay": "soon"}}, "retry.delay", "is not a duration"),
        ({"retry": {"delay": "2d"}}, "retry.delay", "out of range"),
        ({"retry": {"delay": "2m", "delay_max": "1m"}}, "retry.delay_max", "shorter than the delay"),
        ({"retry": {"jitter": 2}}, "retry.jitter", "from 0 to 1"),
        ({"retry": {"jitter": float("nan")}}, "retry.jitter", "from 0 to 1"),
    ],
)
def test_an_invalid_retry_is_refused_by_its_field(body: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_spec({**JOB, **body})

    assert refused.value.field == field
    assert problem in str(refused.value)
    assert refused.value.hint
