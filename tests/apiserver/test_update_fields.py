"""An update of any field gives the same spec as a submit of the whole, or the same refusal."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from rota.apiserver.admission import update
from rota.apiserver.admission.submission import SubmitResult, submit_job
from rota.apiserver.admission.update import IMMUTABLE_FIELDS, UpdateRequest
from rota.apiserver.spec.job import SPEC_ATTRIBUTES, parse_spec
from rota.apiserver.spec.job_body import spec_to_body
from rota.engine.state.mirror import Mirror
from rota.model.errors import Rejected
from rota.model.job import JobSpec
from rota.testing.builders import WALL_MS, add_node, at
from tests.apiserver.builders import ADA

NOW = at(0)
BASES: dict[str, dict[str, Any]] = {
    "batch": {"command": ["true"]},
    "array": {"command": ["true"], "count": 5, "retries": 2, "timeout": "1h", "where": ["ssd exists"]},
    "steps": {"steps": [{"command": ["true"], "env": {"A": "b"}, "timeout": 3}]},
    "service": {"kind": "service", "command": ["serve"], "count": 2, "check": {"http": "/up", "port": 80}},
    "system": {"kind": "system", "command": ["watch"]},
    "leased": {"command": ["true"], "run": "one_at_a_time", "lease": "40s", "lease_margin": "8s"},
    "once": {"command": ["true"], "run": "at_most_once"},
    "owned": {"command": ["true"], "recovery": "controller", "controller": "ci", "controller_wait": "5s"},
    "container": {
        "command": ["true"],
        "image": "alpine",
        "container": {"network": "host", "pull": "missing"},
    },
    "choosy": {"command": ["true"], "retry": {"attempts": 3, "on": [75, "oom"], "delay": "5s", "jitter": 0}},
}
VALUES: dict[str, list[Any]] = {
    "name": ["other"],
    "namespace": ["other"],
    "command": [["echo", "x"]],
    "steps": [[{"name": "one", "command": ["a"]}, {"command": ["b"]}]],
    "env": [{"A": "1", "B": "2"}],
    "workdir": ["/srv"],
    "count": [3, 1],
    "parallel": [2],
    "cpu": [2, 0.5, 0],
    "memory": ["2g", 0],
    "disk": ["1g"],
    "gpu": [1, 0.5],
    "resources": [{"licence": 2}],
    "where": [["region == eu", "ram_gb > 8"], []],
    "priority": [70, 0, 100],
    "retries": [4, 0],
    "timeout": ["90s"],
    "grace": [0, "3s"],
    "run": ["at_least_once", "at_most_once", "one_at_a_time"],
    "when_unschedulable": ["reject"],
    "recovery": ["cancel", "none", "scheduler", "controller"],
    "labels": [{"team": "a"}],
    "region": ["eu"],
    "on": ["node-1"],
    "gpu_model": ["h100"],
    "prefer": ["ssd exists weight 20"],
    "near": ["job == db"],
    "apart": ["app == web over rack weight 50"],
    "spread": ["rack skew 2"],
    "tolerate": ["dedicated=ci"],
    "gang": [True],
    "policy": ["pack"],
    "noise": ["disk"],
    "preemptible": [False],
    "evict_at_most": [0, 1],
    "expect": ["10m"],
    "deadline": ["2h", "2999-01-01T00:00:00Z"],
    "log_bytes": ["10m"],
    "limits": [{"memory": "1g", "cpu": 2, "pids": 100}],
    "files": [{"run.sh": "#!/bin/sh", "data/x": {"base64": "AAEC"}}],
    "image": ["debian"],
    "container": [{"network": "none"}, {"mounts": ["/data:/data:ro"]}],
    "after": [["1"]],
    "kind": ["service"],
    "stop_signal": ["INT"],
    "restart": [{"attempts": 5, "delay": "2s"}],
    "check": [{"tcp": 8080}, {"command": ["./check"]}],
    "sandbox": [True, {"network": True, "writable": ["/srv/data"]}],
    "rollout": [{"max_parallel": 2, "rollback": False}],
    "results": [True, "agent"],
    "lease": ["30s"],
    "lease_margin": ["9s"],
    "retry": [{"attempts": 7}, {"on": [3], "fail_on": [4]}, {"delay": "7s", "delay_max": "9m"}],
    "retry_on": [[5, "signal"], 5],
    "fail_on": [[2]],
    "queue_timeout": ["5m"],
    "controller": ["other"],
    "when_no_controller": ["scheduler"],
    "controller_wait": ["9s"],
    "keep": ["1h"],
    "cluster": ["default"],
    "move_pending": [False],
}
CASES = [(field, value) for field, values in VALUES.items() for value in values]
TABLES = ("retry", "rollout")


def made() -> Mirror:
    mirror = Mirror()
    add_node(mirror, "n1", {"cpu": 8000})
    return mirror


def submitted(mirror: Mirror, body: Mapping[str, Any]) -> JobSpec:
    plan = submit_job(mirror, dict(body), ADA, None, NOW)
    assert isinstance(plan.answer, SubmitResult)
    for record in plan.puts:
        mirror.apply(record)
    return mirror.jobs[plan.answer.job].spec


def updated(body: Mapping[str, Any], patch: dict[str, Any]) -> JobSpec:
    mirror = made()
    job = submitted(mirror, body)
    plan = update.update_job(mirror, job.id, UpdateRequest(patch), ADA, NOW)
    assert isinstance(plan.answer, update.UpdateResult)
    return msgspec.structs.replace(plan.answer.job, version=1)


def outcome(body: Mapping[str, Any], patch: dict[str, Any]) -> JobSpec | Rejected:
    try:
        return updated(body, patch)
    except Rejected as refusal:
        return refusal


def parsed_or_none(body: Mapping[str, Any]) -> JobSpec | None:
    """The spec of a submit; None: it is refused."""
    try:
        return submitted(made(), body)
    except Rejected:
        return None


def values_of(spec: JobSpec, fields: Iterable[str]) -> dict[str, object]:
    """The attributes that these fields set; without the name, which may be derived from the command."""
    return {
        name: getattr(spec, name) for field in fields for name in SPEC_ATTRIBUTES[field] if name != "name"
    }


def merged(body: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """The body that is equal to an update of one field."""
    old = body.get(field)
    if field in TABLES and isinstance(old, dict):
        value = old | value
    dropped: tuple[str, ...] = ()
    if field == "run" and value != "one_at_a_time":
        dropped = ("lease", "lease_margin")
    if field == "recovery" and value != "controller":
        dropped = ("controller", "when_no_controller", "controller_wait")
    if field == "command":
        dropped = ("steps",)
    if field == "steps":
        dropped = ("command",)
    rest = {name: said for name, said in body.items() if name not in dropped}
    short = {"retries": "attempts", "retry_on": "on", "fail_on": "fail_on"}
    if field in short and "retry" in rest:
        return rest | {"retry": rest["retry"] | {short[field]: value}}
    if field == "retry" and "retries" in rest and "attempts" in value:
        del rest["retries"]
    return rest | {field: value}


def test_every_field_has_an_example() -> None:
    assert VALUES.keys() == SPEC_ATTRIBUTES.keys()


@pytest.mark.parametrize("base", BASES)
def test_an_update_gives_the_same_spec_or_refusal_as_a_submit(base: str) -> None:
    for field, value in CASES:
        expected = parsed_or_none(merged(BASES[base], field, value))
        found = outcome(BASES[base], {field: value})
        if isinstance(found, Rejected):
            assert expected is None or field in IMMUTABLE_FIELDS, (field, value, found)
            continue

        assert expected is not None, f"a submit with {field} = {value} is refused"
        assert values_of(found, SPEC_ATTRIBUTES) == values_of(expected, SPEC_ATTRIBUTES), (field, value)


@pytest.mark.parametrize("base", BASES)
def test_null_resets_a_field_of_an_update_or_a_submit(base: str) -> None:
    for field, value in CASES:
        taken = (field, "retries") if field == "retry" else (field,)  # its attempts are the retries
        whole = BASES[base] | {field: value}
        without = {name: said for name, said in BASES[base].items() if name not in taken}
        expected = parsed_or_none(without)
        if parsed_or_none(whole) is None or expected is None or field in IMMUTABLE_FIELDS:
            continue

        found = updated(whole, {field: None})

        assert values_of(found, [field]) == values_of(expected, [field]), (field, value)


@pytest.mark.parametrize("base", BASES)
def test_null_in_any_field_of_any_job_is_handled(base: str) -> None:
    for field in SPEC_ATTRIBUTES:
        assert str(outcome(BASES[base], {field: None}))


@pytest.mark.parametrize("base", BASES)
def test_the_body_of_a_spec_parses_to_the_same_spec(base: str) -> None:
    fields = [
        field
        for field in SPEC_ATTRIBUTES
        if field not in ("name", "namespace", "after", "cluster", "deadline")
    ]
    for field, value in CASES:
        spec = parsed_or_none(BASES[base] | {field: value})
        if spec is None or field == "deadline":
            continue

        again = parse_spec(spec_to_body(spec), WALL_MS)

        assert values_of(again, fields) == values_of(spec, fields), (field, value)


def test_a_short_field_leaves_the_other_constraints() -> None:
    spec = updated({"command": ["true"], "where": ["ssd exists", "region == eu"]}, {"region": "us"})

    assert [str(one) for one in spec.where] == ["ssd exists", "region == us"]


def test_entries_of_a_table_are_merged_and_checked_as_a_whole() -> None:
    spec = updated({"command": ["true"], "env": {"A": "1", "B": "2"}}, {"env": {"A": None, "C": "3"}})
    big = {"run.sh": "x" * 200_000}

    assert spec.env == {"B": "2", "C": "3"}
    with pytest.raises(Rejected, match="files"):
        updated({"command": ["true"], "files": big}, {"files": {"more.sh": "x" * 200_000}})


def test_an_update_of_a_job_whose_deadline_is_close_is_not_refused_for_that() -> None:
    mirror = made()
    job = submitted(mirror, {"command": ["true"], "timeout": "1h", "deadline": "2h"})
    later = at(90 * 60_000)

    assert update.update_job(mirror, job.id, UpdateRequest({"priority": 60}), ADA, later).puts
    with pytest.raises(Rejected, match="deadline"):
        update.update_job(mirror, job.id, UpdateRequest({"timeout": "50m"}), ADA, later)


def test_companion_fields_are_checked_as_at_a_submit() -> None:
    with pytest.raises(Rejected, match="gang"):
        updated({"kind": "system", "command": ["true"]}, {"gang": True})
    with pytest.raises(Rejected, match="retries"):
        updated({"kind": "system", "command": ["true"]}, {"retry": {"attempts": 3}})
