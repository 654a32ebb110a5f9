"""Bounds of a namespace hold for submits, updates, reruns and crons, and refusals name the field."""

from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.identity.tokens import Role
from rota.model.cron import CronRecord, Overlap
from rota.model.limits import NAMESPACE_JOBS_MAX
from rota.model.namespace import NamespaceBounds, NamespaceRecord, NamespaceUsage
from rota.rules.cron_runs import CronRunBatch
from rota.rules.namespace_bounds import bounds_of
from rota.store import codec
from rota.store.memory import MemoryStore
from rota.testing.stage import Stage
from tests.apiserver.serving import Reply, Serving, serving


async def set_bounds(server: Serving, **bounds: Any) -> None:
    reply = await server.call("PUT", "/v1/namespaces/team", {"bounds": bounds})
    assert reply.status == 200, reply
    assert reply.json["bounds"] == bounds


async def submit(server: Serving, **spec: Any) -> Reply:
    return await server.call("POST", "/v1/jobs", {"command": ["true"], "namespace": "team", **spec})


@pytest.mark.parametrize(
    ("bounds", "spec", "field"),
    [
        ({"priority": 60}, {"priority": 61}, "priority"),
        ({"priority": 0}, {"priority": 1}, "priority"),
        ({"tolerate": ["dedicated=team"]}, {"tolerate": ["*"]}, "tolerate"),
        ({"tolerate": ["dedicated=team"]}, {"tolerate": ["dedicated=others"]}, "tolerate"),
        ({"tolerate": ["dedicated=team"]}, {"tolerate": ["dedicated"]}, "tolerate"),
        ({"tolerate": []}, {"tolerate": ["dedicated=team"]}, "tolerate"),
        ({"clusters": ["small"]}, {"cluster": "default"}, "cluster"),
        ({"clusters": ["small", "large"]}, {}, "cluster"),
    ],
)
async def test_a_field_beyond_the_bounds_is_named(
    tmp_path: Path, bounds: dict[str, Any], spec: dict[str, Any], field: str
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await set_bounds(server, **bounds)
        refused = await submit(server, **spec)
        elsewhere = await submit(server, **spec, namespace="other")

    assert (refused.status, refused.json["code"], refused.json["field"]) == (403, "not_allowed", field)
    assert refused.json["hint"]
    assert elsewhere.status == 201


@pytest.mark.parametrize(
    ("bounds", "spec"),
    [
        ({"priority": 60}, {"priority": 60}),
        ({"tolerate": ["dedicated"]}, {"tolerate": ["dedicated=team", "dedicated"]}),
        ({"tolerate": ["*"]}, {"tolerate": ["*"]}),
        ({"clusters": ["default"]}, {"cluster": "default"}),
        ({"jobs": 1}, {}),
    ],
)
async def test_a_job_within_the_bounds_is_accepted(
    tmp_path: Path, bounds: dict[str, Any], spec: dict[str, Any]
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await set_bounds(server, **bounds)
        accepted = await submit(server, **spec)

    assert accepted.status == 201, accepted


async def test_defaults_are_chosen_within_the_bounds(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await set_bounds(server, priority=10, clusters=["default"])
        made = await submit(server)

    assert (made.json["spec"]["priority"], made.json["spec"]["cluster"]) == (10, "default")


@pytest.mark.parametrize(
    ("bounds", "first", "second"),
    [
        ({"jobs": 1}, {}, {}),
        ({"tasks": 10}, {"count": 6}, {"count": 5}),
        ({"bytes": 4000}, {"env": {"A": "a" * 2000}}, {"env": {"A": "a" * 2000}}),
        ({"bytes": 4000}, {"env": {"A": "a" * 2000}}, {"files": {"f": "YWFh" * 700}}),
    ],
)
async def test_what_is_stored_for_a_namespace_is_bounded(
    tmp_path: Path, bounds: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await set_bounds(server, **bounds)
        accepted, refused = await submit(server, **first), await submit(server, **second)
        elsewhere = await submit(server, **second, namespace="default")
        await server.call("POST", f"/v1/jobs/{accepted.json['id']}/cancel")
        await server.call("DELETE", f"/v1/jobs/{accepted.json['id']}")
        again = await submit(server, **second)

    assert (accepted.status, refused.status, elsewhere.status) == (201, 429, 201)
    assert refused.json["code"] == "queue_full"
    assert refused.headers["retry-after"]
    assert again.status == 201, again


async def test_an_update_is_checked_only_in_what_it_changes(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        made = (await submit(server, priority=70, count=5)).json["id"]
        await set_bounds(server, priority=60, tasks=6, tolerate=[])

        async def patch(**fields: Any) -> int:
            return (await server.call("PATCH", f"/v1/jobs/{made}", fields)).status

        statuses = [
            await patch(priority=71),
            await patch(tolerate=["dedicated"]),
            await patch(count=7),
            await patch(count=6),
            await patch(priority=65),
            await patch(env={"A": "1"}),
        ]

    assert statuses == [403, 403, 429, 200, 200, 200]


async def test_a_rerun_is_checked_against_the_bounds(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        made = (await submit(server, priority=70)).json["id"]
        await server.call("POST", f"/v1/jobs/{made}/cancel")
        await set_bounds(server, priority=60)
        again = await server.call("POST", f"/v1/jobs/{made}/rerun", {})

    assert (again.status, again.json["field"]) == (403, "priority")


async def test_crons_are_checked_when_they_are_created_and_when_they_run(tmp_path: Path) -> None:
    cron = {"name": "tick", "namespace": "team", "schedule": "0 1 * * *", "overlap": "allow"}
    async with serving(tmp_path, MemoryStore) as server:
        await set_bounds(server, priority=60, jobs=1)
        refused = await server.call(
            "POST", "/v1/crons", {**cron, "job": {"command": ["true"], "priority": 70}}
        )
        made = await server.call("POST", "/v1/crons", {**cron, "job": {"command": ["true"]}})
        run = await server.call("POST", "/v1/crons/tick/run?namespace=team")
        await server.call("PUT", "/v1/namespaces/team", {"bounds": {"priority": 10}})
        late = await server.call("POST", "/v1/crons/tick/run?namespace=team")

    assert (refused.status, refused.json["field"], made.status) == (403, "priority", 201)
    assert (run.status, late.status) == (201, 409)
    assert late.json["detail"].startswith("priority: ")


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (NamespaceBounds(priority=10), "priority: 50 is more"),
        (NamespaceBounds(jobs=1), "may have 1 unfinished jobs"),
    ],
)
def test_cron_runs_beyond_the_bounds_are_skipped_with_the_reason(
    bounds: NamespaceBounds, reason: str
) -> None:
    stage = Stage()
    stage.put(NamespaceRecord("team", bounds=bounds))
    template = parse_spec({"command": ["true"], "name": "tick"})
    cron = CronRecord("team", "tick", "* * * * *", template, overlap=Overlap.ALLOW)
    runs = CronRunBatch(stage.mirror, cron, stage.now)
    skipped = [runs.start(60_000 * minute) for minute in range(2)]

    assert skipped[-1] is not None
    assert reason in skipped[-1].reason


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        ({"priority": 101}, "bounds.priority"),
        ({"priority": "high"}, "bounds.priority"),
        ({"jobs": -1}, "bounds.jobs"),
        ({"bytes": "much"}, "bounds.bytes"),
        ({"tolerate": 7}, "bounds.tolerate"),
        ({"clusters": [""]}, "bounds.clusters"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_bad_bounds_are_named(tmp_path: Path, bounds: dict[str, Any], field: str) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        reply = await server.call("PUT", "/v1/namespaces/team", {"bounds": bounds})

    assert (reply.status, reply.json["field"]) == (400, field)


async def test_bounds_stay_when_a_client_leaves_them_out(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await set_bounds(server, priority=60)
        kept = await server.call("PUT", "/v1/namespaces/team", {"weight": 2})
        lifted = await server.call("PUT", "/v1/namespaces/team", {"bounds": {}})

    assert (kept.json["bounds"], lifted.json["bounds"]) == ({"priority": 60}, {})


async def test_only_an_operator_of_all_namespaces_may_set_bounds(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        token = server.token_for(Role.ADMIN, "team")
        body = {"bounds": {"priority": 100}}
        refused = await server.call("PUT", "/v1/namespaces/team", body, Authorization=token)

    assert refused.status == 403


def test_without_a_record_every_namespace_but_default_has_default_bounds() -> None:
    stage = Stage()

    assert bounds_of(stage.mirror, "default") == NamespaceBounds()
    assert bounds_of(stage.mirror, "team").jobs == NAMESPACE_JOBS_MAX


def test_a_record_without_bounds_can_be_read() -> None:
    namespace = NamespaceRecord("team", {"cpu": 1000})

    assert b"bounds" not in codec.encode(namespace)
    assert codec.decode(namespace.key, codec.encode(namespace)) == namespace


async def test_usage_is_zero_when_the_jobs_are_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        made = (await submit(server, count=3, env={"A": "b"})).json["id"]
        shown = (await server.call("GET", "/v1/namespaces/team")).json["kept"]
        await server.call("POST", f"/v1/jobs/{made}/cancel")
        ended = server.engine.mirror.usage.usage["team"]
        await server.call("DELETE", f"/v1/jobs/{made}")

        assert (shown["jobs"], shown["tasks"]) == (1, 3)
        assert ended == NamespaceUsage(0, 0, shown["bytes"])
        assert "team" not in server.engine.mirror.usage.usage
