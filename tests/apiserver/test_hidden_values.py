"""Values that may be secrets are shown to callers that could set them, and to no others; names to all."""

from pathlib import Path
from typing import Any

import pytest

from rota.clusters import lifecycle
from rota.identity.tokens import Role
from rota.store.memory import MemoryStore
from tests.apiserver.serving import RECONCILERS, Serving, serving

SECRET = "s3cr3t"
HIDDEN = "***"
JOB = {
    "steps": [{"command": ["true"], "env": {"STEP_KEY": SECRET}}],
    "env": {"API_KEY": SECRET},
}
CRON = {"name": "nightly", "namespace": "team", "schedule": "0 1 * * *", "job": JOB}
CLUSTER = {
    "name": "cloud",
    "provider": "command",
    "capacity": {"cpu": 4},
    "max_nodes": 1,
    "settings": {verb: f"{SECRET} {verb}" for verb in ("create", "list", "remove")},
}


async def create_objects_with_secrets(server: Serving) -> None:
    for path, body in (
        ("/v1/jobs", {**JOB, "command": None, "name": "keyed", "namespace": "team"}),
        ("/v1/crons", CRON),
        ("/v1/clusters", CLUSTER),
    ):
        reply = await server.call("POST", path, body)
        assert reply.status == 201, reply


def specs_of(*replies: Any) -> list[Any]:
    return [reply.json.get("spec") or reply.json["job"] for reply in replies]


@pytest.mark.parametrize(
    ("role", "value"),
    [(Role.VIEWER, HIDDEN), (Role.SUBMITTER, SECRET), (Role.OPERATOR, SECRET), (Role.ADMIN, SECRET)],
)
async def test_values_of_environments_are_shown_to_submitters(tmp_path: Path, role: Role, value: str) -> None:
    async with serving(tmp_path, MemoryStore, [*RECONCILERS, lifecycle.RECONCILER]) as server:
        await create_objects_with_secrets(server)
        token = server.token_for(role, "team")
        job = await server.call("GET", "/v1/jobs/keyed", Authorization=token)
        cron = await server.call("GET", "/v1/crons/nightly?namespace=team", Authorization=token)

    for spec in specs_of(job, cron):
        assert spec["env"] == {"API_KEY": value}
        assert spec["steps"][0]["env"] == {"STEP_KEY": value}
    assert (SECRET in job.body.decode() + cron.body.decode()) is (value == SECRET)


@pytest.mark.parametrize(
    ("role", "namespace", "is_shown"),
    [
        (Role.VIEWER, "*", False),
        (Role.OPERATOR, "*", False),
        (Role.ADMIN, "team", False),
        (Role.ADMIN, "*", True),
    ],
)
async def test_settings_of_providers_are_shown_to_cluster_wide_admins(
    tmp_path: Path, role: Role, namespace: str, is_shown: bool
) -> None:
    async with serving(tmp_path, MemoryStore, [*RECONCILERS, lifecycle.RECONCILER]) as server:
        await create_objects_with_secrets(server)
        token = server.token_for(role, namespace)
        shown = await server.call("GET", "/v1/clusters/cloud", Authorization=token)
        listed = await server.call("GET", "/v1/clusters", Authorization=token)
        some = await server.call("GET", "/v1/clusters?fields=name,settings", Authorization=token)

    for reply in (shown, listed, some):
        assert (SECRET in reply.body.decode()) is is_shown
    assert sorted(shown.json["settings"]) == ["create", "list", "remove"]


async def test_an_operator_who_changes_a_cluster_does_not_see_its_settings(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, [*RECONCILERS, lifecycle.RECONCILER]) as server:
        await create_objects_with_secrets(server)
        token = server.token_for(Role.OPERATOR, "*")
        changed = await server.call("PATCH", "/v1/clusters/cloud", {"max_nodes": 2}, Authorization=token)

    assert changed.status == 200
    assert SECRET not in changed.body.decode()
