"""`rota plan`, `rota namespace`, taints of nodes, and the detailed output of `rota why`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.canned_server import CannedServer, Reply, job, node

Rota = Callable[..., int]
Out = pytest.CaptureFixture[str]


def outlook(outcome: str, sentence: str, **fields: Any) -> dict[str, Any]:
    return {"outcome": outcome, "sentence": sentence, "count": 1, "starts": 0, **fields}


@pytest.mark.parametrize(("outcome", "code"), [("now", 0), ("wait", 10), ("never", 11)])
def test_the_exit_code_shows_the_outcome(
    server: CannedServer, rota: Rota, capsys: Out, outcome: str, code: int
) -> None:
    server.on("POST /v1/plan", outlook(outcome, f"would be {outcome}"))

    assert rota("plan", "--", "true") == code

    assert capsys.readouterr().out == f"would be {outcome}\n"


def test_plan_adds_and_removes_nodes(server: CannedServer, rota: Rota) -> None:
    server.on("POST /v1/plan", outlook("now", "would start now on new-1"))

    new = "count=3,cpu=8,memory=32g,resource.licence=2,region=eu"
    rota("plan", "-c", "4", "--add-node", new, "--without", "a", "--without", "b", "--", "true")

    body = server.asked("POST /v1/plan")[0].body
    capacity = {"cpu": "8", "memory": "32g", "licence": "2"}
    assert body["add_nodes"] == [{"count": "3", "capacity": capacity, "labels": {"region": "eu"}}]
    assert body["without"] == ["a", "b"]
    assert (body["command"], body["cpu"]) == (["true"], 4)


def test_a_job_file_is_planned(server: CannedServer, rota: Rota, tmp_path: Path) -> None:
    server.on("POST /v1/plan", outlook("now", "would start now on a"))
    file = tmp_path / "job.toml"
    file.write_text('command = ["true"]\ncount = 4\n')

    assert rota("plan", str(file)) == 0

    assert server.asked("POST /v1/plan")[0].body["count"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--add-node", "cpu", "--", "true"], "'cpu' is not NAME=VALUE"),
        (["--add-node", "region=eu", "--", "true"], "has no amounts"),
        (["job.toml", "--without", "a"], "flags go before the job file"),
        ([], "no command to run"),
    ],
)
def test_wrong_usage_is_reported_with_the_correct_form(
    server: CannedServer, rota: Rota, capsys: Out, arguments: list[str], message: str
) -> None:
    assert rota("plan", *arguments) == 2

    assert message in capsys.readouterr().err


def test_placements_victims_and_reasons_are_listed(server: CannedServer, rota: Rota, capsys: Out) -> None:
    places = [{"node": "a", "tasks": 3, "new": False}, {"node": "new-1", "tasks": 1, "new": True}]
    evicts = [{"job": "7", "tasks": 2, "indices": [[0, 1]]}, {"job": None, "tasks": 1, "indices": None}]
    reasons = [{"kind": "cpu", "count": 1, "of": 1, "text": "1 of 1 nodes is too small"}]
    server.on(
        "POST /v1/plan",
        outlook("now", "some start", places=places, evicts=evicts, reasons=reasons, position=2),
    )

    rota("plan", "--", "true")

    assert capsys.readouterr().out.splitlines() == [
        "some start",
        "  3 tasks on a",
        "  1 task on new-1 (new)",
        "  ✗ 2 tasks of job 7 would be preempted",
        "  ✗ 1 task of another namespace would be preempted",
        "  - 1 of 1 nodes is too small",
        "  place 2 in the queue, start unknown",
    ]


def test_why_names_the_closest_nodes_and_an_estimated_start(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    misses = [{"node": "a", "lacks": ["1 cpu free, asked 2"]}, {"node": "b", "lacks": ["is lost", "no gpu"]}]
    reasons = [{"kind": kind, "count": 1, "of": 2, "text": f"too little {kind}"} for kind in ("cpu", "gpu")]
    at_ms = time.time_ns() // 1_000_000 + 12 * 60_000
    answer = {"job": "12", "waits": True, "sentence": "waits: too little", "reasons": reasons}
    server.on("GET /v1/jobs/12", job())
    server.on("GET /v1/jobs/12/why", {**answer, "misses": misses, "position": 3, "starts_at_ms": at_ms})

    rota("why", "12")

    clock = time.strftime("%H:%M", time.localtime(at_ms / 1000))
    assert capsys.readouterr().out.splitlines() == [
        "job 12 waits: too little",
        "  - too little cpu",
        "  - too little gpu",
        "  ~ a: 1 cpu free, asked 2",
        "  ~ b: is lost; no gpu",
        f"  place 3 in the queue, starts about {clock}, in 12 min",
    ]


# ---- namespaces


def namespace(**fields: Any) -> dict[str, Any]:
    plain = {"name": "team", "quota": {"cpu": 8.0, "memory": 2**35}, "weight": 2, "held": {"cpu": 2.5}}
    return {**plain, "waiting": 1, **fields}


def test_namespaces_are_listed_with_held_resources_and_quota(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    held = {"cpu": 2.5, "licence": 3, "tasks": 4}
    server.on("GET /v1/namespaces", {"namespaces": [namespace(held=held)]})

    rota("namespace", "ls")

    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["team", "2", "2.5/8", "0", "B/32", "GiB", "0", "4", "1", "licence", "3"]


def test_settings_that_are_not_named_stay_unchanged(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/namespaces/team", namespace())
    server.on("PUT /v1/namespaces/team", namespace(quota={"cpu": 8.0, "tasks": 5}, held={}))

    rota("namespace", "set", "team", "tasks=5", "memory=none")

    body = {"quota": {"cpu": 8.0, "tasks": "5"}, "weight": 2}
    assert server.asked("PUT /v1/namespaces/team")[0].body == body
    assert capsys.readouterr().out == "namespace team: cpu 0/8, tasks 0/5, weight 2\n"


def test_setting_nothing_is_wrong_usage(server: CannedServer, rota: Rota, capsys: Out) -> None:
    assert rota("namespace", "set", "team") == 2

    assert "nothing to change" in capsys.readouterr().err


def test_a_namespace_is_deleted(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("DELETE /v1/namespaces/team", Reply(status=204))

    assert rota("namespace", "rm", "team") == 0

    assert capsys.readouterr().err == "namespace team: no quota, weight 1\n"


# ---- taints


@pytest.mark.parametrize(("verb", "taint"), [("taint", "dedicated=ci"), ("untaint", "dedicated")])
def test_nodes_are_tainted_and_untainted(
    server: CannedServer, rota: Rota, capsys: Out, verb: str, taint: str
) -> None:
    server.on("PATCH /v1/nodes/laptop", node(taints=["gpu"]))

    assert rota("node", verb, "laptop", taint) == 0

    assert server.asked("PATCH /v1/nodes/laptop")[0].body == {verb: [taint]}
    assert capsys.readouterr().err == "node laptop: taints gpu\n"


def test_taints_are_shown(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/nodes", {"nodes": [node(taints=["dedicated=ci"])]})
    server.on("GET /v1/nodes/laptop", node(taints=["dedicated=ci"]))

    rota("node", "ls")
    rota("node", "show", "laptop")

    listed, shown = capsys.readouterr().out.split("node laptop")
    assert "taints: dedicated=ci" in listed
    assert "taints     dedicated=ci" in shown
