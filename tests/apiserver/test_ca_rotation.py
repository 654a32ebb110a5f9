"""Routes of a CA rotation: dependents of the previous CA are shown, and postpone the end of the overlap."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from rota.apiserver.ca_dependents import find_ca_dependents
from rota.identity import authority
from rota.identity.tokens import JoinedWatcher
from rota.model.lifecycle import NodeState
from rota.model.node import Eligibility, NodeIntent, NodeStatus
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Serving, serving

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
ROTATION = "/v1/ca/rotation"


def status_with_certificate(number: int, state: NodeState, end: datetime | None, ca: str) -> NodeStatus:
    at_ms = None if end is None else round(end.timestamp() * 1000)
    status = node_status(number, state)
    return msgspec.structs.replace(status, certificate_expires_at_ms=at_ms, certificate_ca=ca)


async def add(server: Serving, status: NodeStatus, name: str) -> None:
    await server.put("apiserver", node(int(status.id[1:]), name))
    await server.put("watcher", status)


async def test_nodes_depend_on_the_previous_ca_while_they_could_still_renew(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        before = (await server.call("GET", "/v1/ca")).json["fingerprint"]
        started = await server.call("POST", ROTATION, {"overlap_seconds": "7d"})
        after = (await server.call("GET", "/v1/ca")).json["fingerprint"]
        await add(server, status_with_certificate(1, NodeState.READY, NOW + DAY, after), "renewed")
        await add(server, status_with_certificate(2, NodeState.READY, NOW + DAY, before), "late")
        await add(server, status_with_certificate(3, NodeState.SUSPECT, NOW + DAY, ""), "unknown")
        await add(server, status_with_certificate(4, NodeState.LOST, NOW - 80 * DAY, before), "away")
        await add(server, status_with_certificate(5, NodeState.LOST, NOW - 100 * DAY, before), "lapsed")
        await add(server, status_with_certificate(6, NodeState.READY, None, ""), "worker")
        await add(server, status_with_certificate(7, NodeState.READY, NOW + DAY, before), "revoked")
        await server.put("apiserver", NodeIntent(node(7, "any").id, Eligibility.REVOKED))
        joined_ms = round(NOW.timestamp() * 1000) - 3_600_000
        await server.put("apiserver", msgspec.structs.replace(node(8, "quiet"), joined_at_ms=joined_ms))
        found = (await server.call("GET", ROTATION)).json
        refused = await server.call("POST", f"{ROTATION}/finish", {})
        forced = await server.call("POST", f"{ROTATION}/finish", {"force": True})

    assert started.status == 201
    assert started.json["overlap_until_ms"] - started.json["started_at_ms"] == 7 * 86_400_000
    assert (found["nodes"], found["away"]) == (["late", "unknown"], ["away", "quiet"])
    assert refused.status == 409
    assert "needed by node late, node unknown, node away (away), node quiet (away)" in refused.json["detail"]
    assert (forced.status, forced.json["phase"], forced.json["dependents"]) == (200, "stable", 0)
    assert [retired["fingerprint"] for retired in forced.json["retired"]] == [before]


async def test_the_default_overlap_is_as_long_as_a_node_certificate_can_be_used(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        started = (await server.call("POST", ROTATION, {})).json
        again = await server.call("POST", ROTATION, {})
        usable = server.api.authority.node_usable

    assert started["overlap_until_ms"] - started["started_at_ms"] == usable.total_seconds() * 1000
    assert (again.status, again.json["hint"]) == (409, "end it first: rota ca rotate --finish")


@pytest.mark.parametrize("overlap", [-1, "soon", "9999d", [], True])
async def test_an_invalid_overlap_is_refused_by_field_name(tmp_path: Path, overlap: object) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        refused = await server.call("POST", ROTATION, {"overlap_seconds": overlap})
        phase = (await server.call("GET", ROTATION)).json["phase"]

    assert (refused.status, refused.json["field"], phase) == (400, "overlap_seconds", "stable")


async def test_a_watcher_depends_on_the_previous_ca_until_its_last_certificate_has_expired(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        signs = server.api.authority
        server.api.vault.add_watcher(
            JoinedWatcher(id="w1", name="edge", joined_at_ms=0, ca=signs.fingerprint)
        )
        stable = (await server.call("GET", ROTATION)).json["watchers"]
        await server.call("POST", ROTATION, {})
        found = (await server.call("GET", ROTATION)).json["watchers"]
        watchers, mirror = server.api.vault.list_watchers(), server.engine.mirror
        later = find_ca_dependents(mirror, watchers, signs, NOW + authority.SERVER_LIFE + DAY)
        server.api.vault.note_watcher_ca("w1", signs.fingerprint)
        renewed = (await server.call("GET", ROTATION)).json["watchers"]

    assert (stable, found, later.watchers, renewed) == ([], ["edge"], [], [])


async def test_an_idempotency_key_gives_the_same_token_after_a_rotation(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        body, key = {"name": "ci", "role": "viewer"}, {"Idempotency-Key": "once"}
        made = await server.call("POST", "/v1/tokens", body, **key)
        await server.call("POST", ROTATION, {})
        again = await server.call("POST", "/v1/tokens", body, **key)

    assert (made.status, again.status) == (201, 200)
    assert made.json["token"] == again.json["token"]


async def test_a_replaced_ca_is_the_only_one_that_is_shown(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        before = (await server.call("GET", "/v1/ca", Authorization="")).json
        await server.call("POST", ROTATION, {})
        both = (await server.call("GET", "/v1/ca", Authorization="")).json
        replaced = await server.call("POST", "/v1/ca/replace", {})
        after = (await server.call("GET", "/v1/ca", Authorization="")).json

    assert (len(before["trusted"]), len(both["trusted"]), len(after["trusted"])) == (1, 2, 1)
    assert before["ca"] in both["trusted"]
    assert replaced.json["phase"] == "stable"
    assert len(replaced.json["retired"]) == 2
    assert after["fingerprint"] not in (before["fingerprint"], both["fingerprint"])
