"""Bad input: an error with code, field and hint, the documented exit code, and a server that continues."""

from typing import Any

import pytest

from rota.testing.cluster import LocalCluster

pytestmark = pytest.mark.system
GOOD: dict[str, Any] = {"command": ["true"]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": "true"}, "command"),
        ({"command": ["a\0b"]}, "command"),
        ({}, "command"),
        (GOOD | {"cpu": -1}, "cpu"),
        (GOOD | {"cpu": 0}, "cpu"),
        (GOOD | {"cpu": 1e30}, "cpu"),
        (GOOD | {"cpu": "lots"}, "cpu"),
        (GOOD | {"memory": "-5g"}, "memory"),
        (GOOD | {"memory": 10**40}, "memory"),
        (GOOD | {"gpu": 1.5}, "gpu"),
        (GOOD | {"count": 0}, "count"),
        (GOOD | {"count": 10**9}, "count"),
        (GOOD | {"count": "many"}, "count"),
        (GOOD | {"retries": -1}, "retries"),
        (GOOD | {"timeout": "soon"}, "timeout"),
        (GOOD | {"priority": 101}, "priority"),
        (GOOD | {"where": ["region ~ eu"]}, "where"),
        (GOOD | {"env": {"A=B": "c"}}, "env"),
        (GOOD | {"run": "twice"}, "run"),
        (GOOD | {"comand": ["x"]}, "comand"),
        (GOOD | {"workdir": "here"}, "workdir"),
    ],
)
def test_a_bad_field_is_named_with_what_would_be_accepted(
    shared: LocalCluster, body: dict[str, Any], field: str
) -> None:
    answer = shared.call("POST", "/v1/jobs", body)

    assert (answer.status, answer.body["code"]) == (400, "bad_field")
    assert answer.body["field"].startswith(field)
    assert answer.body["hint"]
    assert shared.call("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b'{"command": ["\xff\xfe"]}', b"[" * 100_000, b"\0" * 100]
)
def test_a_body_that_is_not_a_json_object_is_refused(shared: LocalCluster, body: bytes) -> None:
    answer = shared.call("POST", "/v1/jobs", body)

    assert (answer.status, answer.body["code"]) == (400, "bad_request")
    assert "body" in answer.body["detail"]
    assert shared.call("GET", "/healthz").status == 200


def test_a_spec_of_ten_megabytes_is_too_large(shared: LocalCluster) -> None:
    answer = shared.call("POST", "/v1/jobs", {"command": ["echo", "x" * 10_000_000]})

    assert (answer.status, answer.body["code"]) == (413, "too_large")
    assert shared.call("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs/999999"),
        ("GET", "/v1/jobs/%00%ff"),
        ("GET", "/v1/jobs/999999/tasks"),
        ("POST", "/v1/jobs/999999/cancel"),
        ("DELETE", "/v1/jobs/999999"),
        ("GET", "/v1/nodes/nowhere"),
        ("POST", "/v1/nodes/nowhere/drain"),
        ("GET", "/v1/nothing"),
    ],
)
def test_an_unknown_resource_is_404(shared: LocalCluster, method: str, path: str) -> None:
    answer = shared.call(method, path, {} if method == "POST" else None)

    assert (answer.status, answer.body["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["run"], 2, "no command to run"),
        (["run", "--", ""], 2, "command"),
        (["run", "--cpu=-1", "--", "true"], 2, "cpu"),
        (["run", "--memory", "1e99g", "--", "true"], 2, "memory"),
        (["run", "--array", "5-1", "--", "true"], 2, "array"),
        (["run", "--count", "0", "--", "true"], 2, "count"),
        (["run", "--array", "0-999999999", "--", "true"], 2, "count"),
        (["run", "--no-such-flag", "--", "true"], 2, "no-such-flag"),
        (["run", "--", b"\xff\xfe"], 2, "bad_field"),
        (["run", "--file", "no-such-file.toml"], 2, "no-such-file.toml"),
        (["run", "--", "echo", "x" * 120_000, *["y" * 120_000] * 9], 2, "too large"),
        (["show", "999999"], 4, "999999"),
        (["cancel", "999999"], 4, "999999"),
        (["logs", "999999"], 4, "999999"),
        (["wait", "999999"], 4, "999999"),
        (["why", "999999"], 4, "999999"),
        (["node", "drain", "nowhere"], 4, "nowhere"),
        (["lst"], 2, "'ls'"),
    ],
)
def test_the_command_line_explains_bad_input(
    shared: LocalCluster, arguments: list[str | bytes], code: int, expected: str
) -> None:
    ran = shared.rota(*arguments)

    assert (ran.code, ran.out) == (code, ""), ran.err
    assert ran.err.startswith("error: ")
    assert expected in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("toml", ["command = [1, 2]", "command = ['true']\ncpus = 3", "no toml ["])
def test_a_bad_job_file_is_explained(shared: LocalCluster, toml: str) -> None:
    (shared.directory / "bad.toml").write_text(toml)

    ran = shared.rota("run", "--file", "bad.toml")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
