"""ETags: changes by other clients are not overwritten, and a known answer is not sent again."""

from pathlib import Path
from typing import Any

import pytest

from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Serving, serving

CRON = {"name": "nightly", "schedule": "0 1 * * *", "job": {"command": ["true"]}}
CHANGES: list[tuple[str, str, str, tuple[Any, Any]]] = [
    ("/v1/jobs/1", "PATCH", "/v1/jobs/1", ({"priority": 60}, {"priority": 70})),
    ("/v1/nodes/n1", "PATCH", "/v1/nodes/n1", ({"taint": ["a"]}, {"taint": ["b"]})),
    ("/v1/nodes/n1", "POST", "/v1/nodes/n1/cordon", ({}, {})),
    ("/v1/nodes/n1", "POST", "/v1/nodes/n1/drain", ({}, {"force": True})),
    ("/v1/namespaces/team", "PUT", "/v1/namespaces/team", ({"weight": 2}, {"weight": 3})),
    (
        "/v1/crons/nightly",
        "PUT",
        "/v1/crons/nightly",
        ({**CRON, "schedule": "0 2 * * *"}, {**CRON, "schedule": "0 3 * * *"}),
    ),
]


def version_of(tag: str) -> str:
    """The part of a tag before its digest: the version of the desired state."""
    return tag.strip('"').partition(".")[0]


async def create_objects(server: Serving) -> None:
    await server.submit()
    await server.put("apiserver", node(1, "n1"))
    await server.put("watcher", node_status(1))
    await server.call("PUT", "/v1/namespaces/team", {"weight": 9})
    made = await server.call("POST", "/v1/crons", CRON)
    assert made.status == 201, made


@pytest.mark.parametrize(("shown_at", "method", "path", "bodies"), CHANGES)
async def test_a_change_of_an_older_version_is_refused(
    tmp_path: Path, shown_at: str, method: str, path: str, bodies: tuple[Any, Any]
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        first, second = bodies
        seen = (await server.call("GET", shown_at)).headers["etag"]
        mine = await server.call(method, path, first, If_Match=seen)
        now = (await server.call("GET", shown_at)).headers["etag"]
        late = await server.call(method, path, second, If_Match=seen)
        after = (await server.call("GET", shown_at)).headers["etag"]
        again = await server.call(
            method, path, second, If_Match=f'"other", {now}' if "jobs" not in path else now
        )

    assert mine.status < 300, mine
    assert version_of(mine.headers["etag"]) == version_of(now) != version_of(seen)
    assert (late.status, late.json["code"]) == (409, "conflict")
    assert late.json["hint"]
    assert version_of(after) == version_of(now)
    assert again.status < 300, again


@pytest.mark.parametrize("path", ["/v1/namespaces/team", "/v1/crons/nightly"])
async def test_an_object_that_was_changed_meanwhile_is_not_deleted(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        kept = await server.call("DELETE", path, If_Match='"0123456789abcdef"')
        tag = (await server.call("GET", path)).headers["etag"]
        deleted = await server.call("DELETE", path, If_Match=tag)

    assert (kept.status, deleted.status) == (409, 204)


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for _, method, path, _ in CHANGES] + [("DELETE", "/v1/nodes/n1")]
)
@pytest.mark.parametrize("tag", ["yesterday", '"', 'W/"1"', '""', '"a" "b"'])
async def test_an_invalid_tag_is_refused(tmp_path: Path, method: str, path: str, tag: str) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        reply = await server.call(method, path, {}, If_Match=tag)

    assert (reply.status, reply.json["field"]) == (400, "If-Match")


async def test_a_change_of_status_changes_the_tag_and_still_allows_a_change_of_the_seen_version(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        before = (await server.call("GET", "/v1/jobs/1")).headers["etag"]
        await server.call("POST", "/v1/jobs/1/cancel")
        after = (await server.call("GET", "/v1/jobs/1")).headers["etag"]
        deleted = await server.call("DELETE", "/v1/jobs/1", If_Match=before)

    assert version_of(before) == version_of(after) == "1"
    assert before != after
    assert deleted.status == 204


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/tasks", "/v1/crons/nightly"])
async def test_a_known_answer_is_not_modified_until_it_changes(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        first = await server.call("GET", path)
        tag = first.headers["etag"]
        again = await server.call("GET", path, If_None_Match=f'"other", W/{tag}')
        await server.call("POST", "/v1/jobs/1/cancel")
        await server.call("POST", "/v1/crons/nightly/pause")
        changed = await server.call("GET", path, If_None_Match=tag)

    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert (changed.status, changed.headers["etag"] != tag) == (200, True)


async def test_a_stream_is_not_cut_short_by_a_tag(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await server.submit()
        await server.call("POST", "/v1/jobs/1/cancel")
        followed = await server.call("GET", "/v1/jobs/1/follow", If_None_Match="*")

    assert (followed.status, followed.body.startswith(b"event: ")) == (200, True)
