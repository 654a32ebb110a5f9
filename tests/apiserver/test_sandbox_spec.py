"""`sandbox` of a spec: what is accepted, and what is refused by the name of the field."""

import json
from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views.job_spec import spec_json
from rota.model.container import SANDBOX, SandboxSpec
from rota.model.errors import BadField
from rota.model.messages import task_template

COMMAND = {"command": ["true"]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (False, None),
        (True, SandboxSpec()),
        ({}, SandboxSpec()),
        ({"network": True, "writable": ["/data", "/a//b/"]}, SandboxSpec(True, ("/data", "/a/b"))),
    ],
)
def test_every_form_of_a_sandbox_is_parsed(value: Any, expected: SandboxSpec | None) -> None:
    spec = parse_spec({**COMMAND, "sandbox": value})

    assert spec.sandbox == task_template(spec).sandbox == expected
    assert (SANDBOX in spec.shape.where) == (expected is not None)
    assert parse_spec(json.loads(json.dumps(spec_json(spec)))) == spec


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"sandbox": "yes"}, "sandbox", "is neither true nor an object"),
        ({"sandbox": {"net": True}}, "sandbox.net", "is not a known field"),
        ({"sandbox": {"network": "yes"}}, "sandbox.network", ""),
        ({"sandbox": {"writable": ["data"]}}, "sandbox.writable[0]", "'data' is not an absolute path"),
        (
            {"sandbox": {"writable": ["/./"]}},
            "sandbox.writable[0]",
            "would make the whole machine writable",
        ),
        ({"sandbox": True, "workdir": "/"}, "workdir", "would make the whole machine writable"),
        ({"sandbox": True, "image": "a"}, "sandbox", "a container is isolated already"),
    ],
)
def test_an_invalid_sandbox_is_refused_by_its_field(body: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_spec({**COMMAND, **body})

    assert refused.value.field == field
    assert problem in str(refused.value)
