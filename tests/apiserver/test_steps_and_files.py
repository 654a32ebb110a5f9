"""Steps and files of a spec: parsed, or refused by the name of the field."""

from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views.job_spec import spec_json
from rota.model import limits
from rota.model.errors import BadField
from rota.model.lifecycle import AttemptState
from rota.model.steps import StepMark, states

STEP = {"command": ["make"]}


def refusal(**body: Any) -> BadField:
    with pytest.raises(BadField) as refused:
        parse_spec(body)
    assert refused.value.hint
    return refused.value


def test_steps_replace_the_command() -> None:
    spec = parse_spec({"steps": [STEP, {"name": "test", "command": ["make", "test"], "timeout": "1m"}]})

    assert spec.command == ()
    assert [step.name for step in spec.steps] == ["step-1", "test"]
    assert spec.steps[1].timeout_seconds == 60
    assert spec.name == "make"
    again = spec_json(spec)
    assert again["steps"][1] == {"name": "test", "command": ("make", "test"), "timeout": 60}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": ["a"], "steps": [STEP]}, "steps"),
        ({"steps": []}, "steps"),
        ({"steps": [STEP] * 101}, "steps"),
        ({"steps": "make"}, "steps"),
        ({"steps": [["make"]]}, "steps"),
        ({"steps": [{"name": "a"}]}, "steps[0].command"),
        ({"steps": [STEP, {"command": []}]}, "steps[1].command"),
        ({"steps": [{**STEP, "retries": 1}]}, "steps[0].retries"),
        ({"steps": [{**STEP, "timeout": 0}]}, "steps[0].timeout"),
        ({"steps": [{**STEP, "env": {"1": "x"}}]}, "steps[0].env"),
        ({"steps": [{**STEP, "name": "a b"}]}, "steps[0].name"),
        ({"steps": [{**STEP, "name": "a"}, {**STEP, "name": "a"}]}, "steps[1].name"),
    ],
)
def test_an_invalid_step_is_named(body: dict[str, Any], field: str) -> None:
    assert refusal(**body).field == field


def test_files_are_text_or_base64() -> None:
    spec = parse_spec({"command": ["a"], "files": {"a/b": "x", "c": {"base64": "/w=="}}})

    assert spec.files == {"a/b": b"x", "c": b"\xff"}
    assert spec_json(spec)["files"] == {"a/b": 1, "c": 1}


@pytest.mark.parametrize(
    "files",
    [
        ["a"],
        {"/etc/passwd": ""},
        {"../a": ""},
        {"a/../b": ""},
        {"a//b": ""},
        {"": ""},
        {"a": 1},
        {"a": {"base64": "!"}},
        {"a": {"text": "!"}},
        {"a": "", "a/b": ""},
        {"out/a": ""},
        {"a": "x" * (limits.FILES_BYTES_MAX + 1)},
        {str(number): "" for number in range(limits.FILES_MAX + 1)},
        {"a\0b": ""},
        {"a": "\ud800"},
    ],
)
def test_files_outside_the_working_directory_or_too_large_are_refused(files: Any) -> None:
    assert refusal(command=["a"], files=files).field == "files"


def test_files_are_refused_with_a_workdir() -> None:
    assert refusal(command=["a"], files={"a": ""}, workdir="/srv").field == "files"


def test_the_state_of_steps_follows_from_their_marks_and_the_attempt() -> None:
    ended, begun = StepMark(1, 2, 0), StepMark(3)

    assert states(3, (), AttemptState.OFFERED) == ["waiting"] * 3
    assert states(3, (ended, begun), AttemptState.RUNNING) == ["succeeded", "running", "waiting"]
    assert states(3, (ended,), AttemptState.RUNNING) == ["succeeded", "waiting", "waiting"]
    assert states(3, (ended, begun), AttemptState.LOST) == ["succeeded", "lost", "skipped"]
    assert states(2, (ended, ended), AttemptState.SUCCEEDED) == ["succeeded"] * 2
    assert states(2, (StepMark(1, 2, 1),), AttemptState.FAILED) == ["failed", "skipped"]
