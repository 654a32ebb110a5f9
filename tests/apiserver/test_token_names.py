"""A token's name is unique among valid tokens, and what is stored for the name stays with its owner."""

import asyncio
from pathlib import Path
from typing import Any

from rota.apiserver.access import Caller
from rota.apiserver.spec.recovery import default_controller
from rota.identity.tokens import Role
from rota.model.limits import CONTROLLER_WAIT_SECONDS
from rota.model.subscriber import Subscriber
from rota.store.memory import MemoryStore
from rota.testing.stage import Stage
from rota.wire.generated import controller_pb2 as pb
from tests.apiserver.outside_controller import Controller, controller
from tests.apiserver.serving import Reply, Serving, serving


async def make(server: Serving, name: str, **fields: Any) -> Reply:
    return await server.call("POST", "/v1/tokens", {"name": name, "role": "viewer", **fields})


async def test_a_second_token_of_a_name_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        first, second = await make(server, "ci"), await make(server, "ci", role="admin")
        await server.call("DELETE", f"/v1/tokens/{first.json['id']}")
        third = await make(server, "ci")

    assert (first.status, second.status, third.status) == (201, 409, 201)
    assert second.json["field"] == "name"
    assert first.json["id"] in second.json["detail"]
    assert "replaces" in second.json["hint"]


async def test_an_expired_token_leaves_its_name_free(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        server.api.vault.make_api_token("ci", Role.VIEWER, ("*",), 0, expires_at_ms=1)
        made = await make(server, "ci")

    assert made.status == 201


async def test_a_token_is_replaced_while_the_previous_one_is_still_valid(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        first = await make(server, "ci")
        second = await make(server, "ci", replaces=first.json["id"])
        others = [
            await make(server, "cd", replaces=first.json["id"]),
            await make(server, "ci", replaces="nonsense"),
            await make(server, "ci", replaces=7),
        ]
        used = [
            await server.call("GET", "/v1/jobs", Authorization=f"Bearer {reply.json['token']}")
            for reply in (first, second)
        ]

    assert second.status == 201
    assert [reply.status for reply in used] == [200, 200]
    assert [(reply.status, reply.json["field"]) for reply in others] == [
        (409, "replaces"),
        (404, "replaces"),
        (400, "replaces"),
    ]


async def test_the_audit_log_distinguishes_tokens_of_one_name(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        first = await make(server, "ci")
        second = await make(server, "ci", replaces=first.json["id"])
        for reply in (first, second):
            await server.call("POST", "/v1/jobs", {}, Authorization=f"Bearer {reply.json['token']}")
        audited = [(line["who"], line["token"]) for line in server.audited()][-2:]

    assert audited == [("ci", first.json["id"]), ("ci", second.json["id"])]


async def test_grpc_calls_are_audited_with_the_id_of_the_token(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        await outside.schedule({"command": ["true"]}).read()
        (token,) = outside.server.api.vault.list_api_tokens()
        audited = [(line["who"], line["token"]) for line in outside.server.audited()]

    assert audited == [("outside", token.id)]


def with_token(outside: Controller, name: str, replaces: str | None = None) -> Controller:
    """Another controller, with a token of that name."""
    vault, server = outside.server.api.vault, outside.server
    secret = vault.make_api_token(name, Role.SUBMITTER, ("*",), 0, replaces=replaces)
    return Controller(Serving(server.api, server.port, secret, server.source, server.directory), outside.stub)


async def next_event_of_subscriber(outside: Controller) -> Any:
    """The first event that the named subscriber gets when it reconnects."""
    watching = outside.stub.Watch(pb.WatchRequest(subscriber="a"), metadata=outside.metadata)
    await watching.initial_metadata()
    await outside.schedule({"command": ["true"]}).read()
    first = (await watching.read()).events[0]
    watching.cancel()
    return first


async def acknowledge_the_first_event(outside: Controller) -> Any:
    first = await next_event_of_subscriber(outside)
    await outside.call("Acknowledge", pb.AcknowledgeRequest(subscriber="a", sequence=first.sequence))
    return first


async def test_a_later_token_of_a_name_does_not_get_the_cursor_of_the_previous_one(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        acknowledged = await acknowledge_the_first_event(outside)
        (token,) = outside.server.api.vault.list_api_tokens()
        outside.server.api.vault.revoke_api_token(token.id)
        next_event = await next_event_of_subscriber(with_token(outside, token.name))

    assert next_event.kind == "job.submitted"
    assert (acknowledged.job, next_event.job) == ("1", "2")


async def test_a_token_that_replaces_another_resumes_at_its_cursor(tmp_path: Path) -> None:
    async with controller(tmp_path) as outside, asyncio.timeout(10):
        acknowledged = await acknowledge_the_first_event(outside)
        (token,) = outside.server.api.vault.list_api_tokens()
        next_event = await next_event_of_subscriber(with_token(outside, token.name, token.id))

    assert acknowledged.kind == "job.submitted"
    assert (next_event.kind, next_event.job) == ("job.active", "1")


def test_a_subscriber_of_a_previous_token_of_the_name_controls_no_new_jobs() -> None:
    stage = Stage()
    stage.put(Subscriber("ci:a", 1, 0, "previous"))
    now = stage.now

    assert CONTROLLER_WAIT_SECONDS > 0
    for owner, expected in (("previous", "a"), ("later", None)):
        caller = Caller("ci", Role.SUBMITTER, ("*",), token="t", owner=owner)
        assert default_controller(stage.mirror, {}, caller, now) == expected
