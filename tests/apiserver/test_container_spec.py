"""`image` and `container` of a spec: what is accepted, and what is refused by the name of the field."""

import json
from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.apiserver.views.job_spec import spec_json
from rota.model.container import ContainerNetwork, ContainerSpec, MountSpec, PullPolicy
from rota.model.errors import BadField
from rota.model.messages import task_template

COMMAND = {"command": ["true"]}


def test_an_image_alone_is_enough() -> None:
    assert parse_spec({**COMMAND, "image": "alpine:3.20"}).container == ContainerSpec("alpine:3.20")


def test_every_setting_of_a_container_is_parsed() -> None:
    inside = {
        "user": 1000,
        "network": "host",
        "mounts": ["/data:/data:ro", {"source": "/a", "target": "/b"}],
        "workdir": "/b",
        "pull": "missing",
    }

    spec = parse_spec({**COMMAND, "image": "registry.example:5000/team/app@sha256:00ff", "container": inside})

    mounts = (MountSpec("/data", "/data", True), MountSpec("/a", "/b"))
    image = "registry.example:5000/team/app@sha256:00ff"
    assert spec.container == ContainerSpec(
        image, "1000", ContainerNetwork.HOST, mounts, "/b", PullPolicy.MISSING
    )
    assert parse_spec(json.loads(json.dumps(spec_json(spec)))) == spec


def test_limits_and_files_are_allowed_with_an_image() -> None:
    work = task_template(
        parse_spec({**COMMAND, "image": "a", "limits": {"pids": 9}, "files": {"run.sh": "true"}})
    )

    assert (work.limits, work.files) == ({"pids": 9}, {"run.sh": b"true"})
    assert work.container == ContainerSpec("a")


def test_steps_are_allowed_with_an_image() -> None:
    work = task_template(
        parse_spec({"image": "a", "steps": [{"command": ["make"]}, {"command": ["make", "test"]}]})
    )

    assert [step.command for step in work.steps] == [("make",), ("make", "test")]
    assert work.container == ContainerSpec("a")


def test_a_multiline_variable_of_a_step_is_refused_by_its_field() -> None:
    with pytest.raises(BadField, match="has several lines") as refused:
        parse_spec({"image": "a", "steps": [{"command": ["make"], "env": {"A": "b\nc"}}]})

    assert refused.value.field == "steps[0].env"


def test_a_multiline_variable_is_allowed_without_an_image() -> None:
    plain = parse_spec({**COMMAND, "image": "a"})
    mounting = parse_spec({**COMMAND, "image": "a", "container": {"mounts": ["/etc:/x"]}})
    other_image = parse_spec({**COMMAND, "image": "b"})

    assert plain.shape != mounting.shape
    assert plain.shape == other_image.shape


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"container": {}}, "container"),
        ({"image": "--privileged"}, "image"),
        ({"image": "a b"}, "image"),
        ({"image": ""}, "image"),
        ({"image": 7}, "image"),
        ({"image": "a", "container": []}, "container"),
        ({"image": "a", "container": {"ports": []}}, "container.ports"),
        ({"image": "a", "container": {"user": "root"}}, "container.user"),
        ({"image": "a", "container": {"user": -1}}, "container.user"),
        ({"image": "a", "container": {"user": True}}, "container.user"),
        ({"image": "a", "container": {"network": "bridge"}}, "container.network"),
        ({"image": "a", "container": {"pull": "always"}}, "container.pull"),
        ({"image": "a", "container": {"workdir": "here"}}, "container.workdir"),
        ({"image": "a", "container": {"mounts": {}}}, "container.mounts"),
        ({"image": "a", "container": {"mounts": ["/a:/b"] * 2}}, "container.mounts"),
        ({"image": "a", "container": {"mounts": ["/a:/b"] * 33}}, "container.mounts"),
        ({"image": "a", "container": {"mounts": ["/a"]}}, "container.mounts[0]"),
        ({"image": "a", "container": {"mounts": ["/a:/b:rx"]}}, "container.mounts[0]"),
        ({"image": "a", "container": {"mounts": ["a:/b"]}}, "container.mounts[0].source"),
        ({"image": "a", "container": {"mounts": ["/a,x:/b"]}}, "container.mounts[0].source"),
        ({"image": "a", "container": {"mounts": ["/a:/"]}}, "container.mounts[0].target"),
        ({"image": "a", "container": {"mounts": [{"source": "/a"}]}}, "container.mounts[0].target"),
        (
            {"image": "a", "container": {"mounts": [{"source": "/a", "target": "/b", "read_only": 1}]}},
            "container.mounts[0].read_only",
        ),
        ({"image": "a", "gpu": 1}, "gpu"),
        ({"image": "a", "env": {"KEY": "two\nlines"}}, "env"),
        ({"image": "a", "env": {"KEY": "x" * 60_001}}, "env"),
        ({"image": "a", "run": "one_at_a_time"}, "run"),
        ({"image": "a", "files": {"a": "x"}, "workdir": "/w"}, "files"),
        ({"image": "a", "files": {"a": "x"}, "container": {"workdir": "/w"}}, "files"),
    ],
)
def test_an_invalid_value_is_refused_by_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as refused:
        parse_spec({**COMMAND, **body})

    assert refused.value.field == field
    assert refused.value.hint
