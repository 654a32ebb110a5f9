"""Every route there is, each with bad input: a problem that names the field, and nothing is changed."""

from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.openapi.document import OPERATIONS
from rota.apiserver.openapi.fields import Operation
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Reply, Serving, serving

WITH_BODY = [one for one in OPERATIONS if one.body is not None]
NAMED = [one for one in OPERATIONS if "{ref}" in one.path]
NEVER_MISSING = ("GET /v1/namespaces/{ref}", "PUT /v1/namespaces/{ref}")  # nothing is set, and then something
BAD_BODIES = (b"{", b"[]", b'"text"', b'{"nonsense": 1}', b"\xff")
CRON = {"name": "there", "schedule": "0 1 * * *", "job": {"command": ["true"]}}
GOOD: dict[str, Any] = {"/v1/crons/{ref}": CRON, "/v1/nodes/{ref}": {"taint": ["a"]}}


def named(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def path_of(operation: Operation, ref: str) -> str:
    return operation.path.format(ref=ref, index="0", attempt="1")


async def with_something(server: Serving) -> None:
    await server.submit(name="there")
    await server.put("apiserver", node(1, "there"))
    await server.put("watcher", node_status(1))
    await server.call("PUT", "/v1/namespaces/there", {"weight": 2})
    await server.call("POST", "/v1/crons", CRON)


def assert_problem(reply: Reply, *statuses: int) -> None:
    assert reply.status in statuses, reply
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["type"] == "about:blank"
    assert reply.json["status"] == reply.status
    assert reply.json["code"]
    assert reply.json["detail"]


@pytest.mark.parametrize("operation", WITH_BODY, ids=named)
async def test_a_body_that_makes_no_sense_is_refused(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await with_something(server)
        before = server.engine.revision
        for body in BAD_BODIES:
            assert_problem(await server.call(operation.method, path_of(operation, "there"), body), 400)

        assert server.engine.revision == before


@pytest.mark.parametrize("operation", [one for one in NAMED if named(one) not in NEVER_MISSING], ids=named)
async def test_what_is_not_there_is_told_so(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await with_something(server)
        body = GOOD.get(operation.path) if operation.body is not None else None
        reply = await server.call(operation.method, path_of(operation, "nobody"), body)

    assert_problem(reply, 404)


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
async def test_a_parameter_that_nobody_knows_is_named(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await with_something(server)
        reply = await server.call(operation.method, f"{path_of(operation, 'there')}?nonsense=1")

    assert_problem(reply, 400)
    assert reply.json["field"] == "nonsense"
    assert reply.json["hint"]


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if any(_.schema.get("type") == "integer" for _ in one.query)],
    ids=named,
)
async def test_a_number_that_is_none_is_named(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await with_something(server)
        for parameter in operation.query:
            if parameter.schema.get("type") == "integer":
                path = f"{path_of(operation, 'there')}?{parameter.name}=many"
                reply = await server.call(operation.method, path, {} if operation.body else None)

                assert_problem(reply, 400, 404)
                assert reply.json["field"] == parameter.name
