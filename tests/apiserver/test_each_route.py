"""Every route with bad input: the answer is a problem that names the field, and nothing changes."""

from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.openapi.document import OPERATIONS
from rota.apiserver.openapi.fields import Operation
from rota.store.memory import MemoryStore
from tests.apiserver.builders import node, node_status
from tests.apiserver.serving import Reply, Serving, serving

WITH_BODY = [operation for operation in OPERATIONS if operation.body is not None]
NAMED = [operation for operation in OPERATIONS if "{ref}" in operation.path]
# A namespace exists without a record: then all its fields have their defaults.
ALWAYS_FOUND = ("GET /v1/namespaces/{ref}", "PUT /v1/namespaces/{ref}")
BAD_BODIES = (b"{", b"[]", b'"text"', b'{"nonsense": 1}', b"\xff")
CRON = {"name": "there", "schedule": "0 1 * * *", "job": {"command": ["true"]}}
GOOD: dict[str, Any] = {"/v1/crons/{ref}": CRON, "/v1/nodes/{ref}": {"taint": ["a"]}}


def named(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def path_of(operation: Operation, ref: str) -> str:
    return operation.path.format(ref=ref, index="0", attempt="1")


async def create_objects(server: Serving) -> None:
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
async def test_a_bad_body_is_refused_and_changes_nothing(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        before = server.engine.revision
        for body in BAD_BODIES:
            assert_problem(await server.call(operation.method, path_of(operation, "there"), body), 400)

        assert server.engine.revision == before


@pytest.mark.parametrize(
    "operation", [operation for operation in NAMED if named(operation) not in ALWAYS_FOUND], ids=named
)
async def test_a_missing_object_is_not_found(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        body = GOOD.get(operation.path) if operation.body is not None else None
        reply = await server.call(operation.method, path_of(operation, "nobody"), body)

    assert_problem(reply, 404)


@pytest.mark.parametrize("operation", OPERATIONS, ids=named)
async def test_an_unknown_parameter_is_named(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        reply = await server.call(operation.method, f"{path_of(operation, 'there')}?nonsense=1")

    assert_problem(reply, 400)
    assert reply.json["field"] == "nonsense"
    assert reply.json["hint"]


@pytest.mark.parametrize(
    "operation",
    [
        operation
        for operation in OPERATIONS
        if any(parameter.schema.get("type") == "integer" for parameter in operation.query)
    ],
    ids=named,
)
async def test_an_invalid_number_is_named(tmp_path: Path, operation: Operation) -> None:
    async with serving(tmp_path, MemoryStore) as server:
        await create_objects(server)
        for parameter in operation.query:
            if parameter.schema.get("type") == "integer":
                path = f"{path_of(operation, 'there')}?{parameter.name}=many"
                reply = await server.call(operation.method, path, {} if operation.body else None)

                assert_problem(reply, 400, 404)
                assert reply.json["field"] == parameter.name
