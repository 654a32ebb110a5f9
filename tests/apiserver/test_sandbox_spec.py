"""What may be said of a sandbox, and what is refused with the field's name."""

import json
from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views.job_spec import spec_json as shown
from rota.model.container import SANDBOX, SandboxSpec
from rota.model.errors import BadField
from rota.model.messages import task_template

COMMAND = {"command": ["true"]}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, None),
        (False, None),
        (True, SandboxSpec()),
        ({}, SandboxSpec()),
        ({"network": True, "writable": ["/data", "/a//b/"]}, SandboxSpec(True, ("/data", "/a/b"))),
    ],
)
def test_what_can_be_said_of_a_sandbox(said: Any, meant: SandboxSpec | None) -> None:
    spec = parse_spec({**COMMAND, "sandbox": said})

    assert spec.sandbox == task_template(spec).sandbox == meant
    assert (SANDBOX in spec.shape.where) == (meant is not None)
    assert parse_spec(json.loads(json.dumps(shown(spec)))) == spec


@pytest.mark.parametrize(
    ("said", "field", "problem"),
    [
        ({"sandbox": "yes"}, "sandbox", "is neither true nor a table"),
        ({"sandbox": {"net": True}}, "sandbox.net", "is not a known field"),
        ({"sandbox": {"network": "yes"}}, "sandbox.network", ""),
        ({"sandbox": {"writable": ["data"]}}, "sandbox.writable[0]", "'data' is not an absolute path"),
        (
            {"sandbox": {"writable": ["/./"]}},
            "sandbox.writable[0]",
            "would leave the whole machine writable",
        ),
        ({"sandbox": True, "workdir": "/"}, "workdir", "would leave the whole machine writable"),
        ({"sandbox": True, "image": "a"}, "sandbox", "a container is one already"),
    ],
)
def test_what_is_refused_is_called_by_its_field(said: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_spec({**COMMAND, **said})

    assert refused.value.field == field
    assert problem in str(refused.value)
