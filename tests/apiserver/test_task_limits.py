"""Limits of tasks: parsed, or refused by name."""

from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views import job_spec
from rota.model.errors import BadField
from rota.model.messages import task_template


def body(limits: Any) -> dict[str, Any]:
    return {"command": ["true"], "limits": limits}


def test_limits_are_parsed_into_the_units_of_the_model() -> None:
    spec = parse_spec(body({"memory": "1g", "cpu": 0.5, "pids": "100"}))

    assert task_template(spec).limits == {"memory": 1 << 30, "cpu": 500, "pids": 100}
    assert job_spec.spec_json(spec)["limits"] == {"memory": 1 << 30, "cpu": 0.5, "pids": 100}
    assert parse_spec(body(job_spec.spec_json(spec)["limits"])).limits == spec.limits


def test_without_limits_none_are_shown() -> None:
    assert "limits" not in job_spec.spec_json(parse_spec({"command": ["true"]}))


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ([], "limits"),
        ({"disk": "1g"}, "limits.disk"),
        ({"memory": "much"}, "limits.memory"),
        ({"memory": "10k"}, "limits.memory"),
        ({"memory": 0}, "limits.memory"),
        ({"cpu": 0}, "limits.cpu"),
        ({"pids": 0}, "limits.pids"),
        ({"pids": 1.5}, "limits.pids"),
        ({"pids": True}, "limits.pids"),
    ],
)
def test_an_invalid_limit_is_refused_by_its_name(limits: Any, field: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_spec(body(limits))

    assert refused.value.field == field
