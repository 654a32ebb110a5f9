"""The OpenAPI document is complete, and responses match it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.admission import crons
from rota.apiserver.http import ROUTES
from rota.apiserver.openapi.crons import CronBody
from rota.apiserver.openapi.document import OPERATIONS, build_document
from rota.apiserver.openapi.spec import JobBody
from rota.apiserver.spec import job
from rota.model.lifecycle import AttemptState
from rota.store.memory import MemoryStore
from tests.apiserver.builders import attempts, node, node_status, statuses
from tests.apiserver.serving import Serving, serving

DOCUMENT = build_document("0.1.0")
SCHEMAS = DOCUMENT["components"]["schemas"]
JOB = {"command": ["true"], "count": 2, "labels": {"team": "web"}, "check": None}
SERVICE = {"command": ["serve"], "kind": "service", "check": {"tcp": 80}, "env": {"A": "b"}}
CRON = {"name": "nightly", "schedule": "0 1 * * *", "job": {"command": ["true"]}}
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/jobs", JOB),
    ("GET", "/v1/jobs", None),
    ("GET", "/v1/jobs/1", None),
    ("PATCH", "/v1/jobs/1", {"priority": 60}),
    ("POST", "/v1/jobs/1/pause", {}),
    ("POST", "/v1/jobs/1/resume", {}),
    ("GET", "/v1/jobs/1/why", None),
    ("GET", "/v1/jobs/1/tasks", None),
    ("GET", "/v1/jobs/1/tasks/0", None),
    ("GET", "/v1/jobs/1/tasks/0/attempts", None),
    ("GET", "/v1/jobs/1/tasks/0/attempts/1", None),
    ("POST", "/v1/jobs/2/cancel", {"reason": "enough"}),
    ("POST", "/v1/jobs/2/rerun", {}),
    ("POST", "/v1/plan", {"command": ["true"], "cpu": 64}),
    ("POST", "/v1/plan/drain", {"nodes": ["n1"]}),
    ("GET", "/v1/nodes", None),
    ("GET", "/v1/nodes/n1", None),
    ("POST", "/v1/nodes/n1/drain", {"deadline_seconds": 60}),
    ("POST", "/v1/nodes/n1/open", {}),
    ("PATCH", "/v1/nodes/n1", {"taint": ["a=b"]}),
    ("GET", "/v1/brake", None),
    ("PUT", "/v1/namespaces/team", {"quota": {"cpu": 8}}),
    ("GET", "/v1/namespaces", None),
    ("GET", "/v1/namespaces/team", None),
    ("POST", "/v1/crons", CRON),
    ("GET", "/v1/crons", None),
    ("POST", "/v1/crons/nightly/run", {}),
    ("GET", "/v1/crons/nightly", None),
    ("PUT", "/v1/crons/nightly", CRON),
    ("POST", "/v1/clusters", {"name": "east", "region": "east"}),
    ("GET", "/v1/clusters", None),
    ("GET", "/v1/clusters/east", None),
    ("PATCH", "/v1/clusters/east", {"drain": True}),
    ("DELETE", "/v1/clusters/east", None),
    ("GET", "/v1/events", None),
    ("POST", "/v1/tokens", {"name": "ci", "role": "viewer"}),
    ("GET", "/v1/tokens", None),
    ("POST", "/v1/join-tokens", {"local": True}),
    ("GET", "/v1/ca", None),
    ("GET", "/v1/server", None),
    ("GET", "/v1/jobs/nobody", None),
]


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    described = {(method.upper(), path) for path, found in DOCUMENT["paths"].items() for method in found}

    assert described == {(method, route.path) for route in ROUTES for method in route.methods or ()}


def test_every_field_and_every_parameter_has_a_description() -> None:
    silent = [
        f"{name}.{field}" for name, field, field_schema in fields() if not field_schema.get("description")
    ]
    silent += [name for name, schema in SCHEMAS.items() if not schema.get("description")]
    for operation in operations():
        silent += [parameter["name"] for parameter in operation["parameters"] if not parameter["description"]]

    assert silent == []
    assert len({operation["operationId"] for operation in operations()}) == len(OPERATIONS)


def test_the_body_models_have_the_fields_that_are_parsed() -> None:
    assert set(JobBody.__struct_fields__) == set(job.SPEC_FIELDS)
    assert set(CronBody.__struct_fields__) == set(crons.CRON_BODY_FIELDS)


@pytest.fixture
async def used(tmp_path: Path) -> Any:
    """A server with at least one resource of each kind."""
    async with serving(tmp_path, MemoryStore) as server:
        await server.put("apiserver", node(1, "n1"))
        await server.put("watcher", node_status(1))
        await server.submit(**JOB)
        await server.submit(**SERVICE)
        await server.put("scheduler", attempts("1", 2, number=[1, 1], placed_at_ms=[5, 5]))
        await server.put("watcher", statuses("1", 2, number=[1, 1], state=[AttemptState.RUNNING] * 2))
        yield server


async def test_every_response_matches_the_document(used: Serving) -> None:
    wrong: list[str] = []
    for method, path, body in CALLS:
        reply = await used.call(method, path, body)
        schema = schema_of(method, path, reply.status)
        wrong += [f"{method} {path}: {one}" for one in mismatches(reply.json, schema, "")]

    assert wrong == []


async def test_the_server_serves_its_own_document(used: Serving) -> None:
    served = await used.call("GET", "/v1/openapi.json")

    assert served.json == DOCUMENT


def fields() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, schema in SCHEMAS.items():
        for field, one in schema.get("properties", {}).items():
            yield name, field, one


def operations() -> Iterator[dict[str, Any]]:
    for found in DOCUMENT["paths"].values():
        yield from found.values()


def schema_of(method: str, path: str, status: int) -> dict[str, Any]:
    for template, found in DOCUMENT["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path) and method.lower() in found:
            responses = found[method.lower()]["responses"]
            content = responses.get(str(status), responses["default"])["content"]
            schema: dict[str, Any] = next(iter(content.values()))["schema"]
            return schema
    raise AssertionError(f"{method} {path} is not in the document")


def mismatches(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    """Differences from the schema: unknown fields, values of other types, missing fields."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        found = [list(mismatches(value, one, where)) for one in schema["anyOf"]]
        if all(found):
            yield from min(found, key=len)
        return
    if not has_type(value, schema.get("type")):
        yield f"{where} is {value!r}, not {schema}"
    elif isinstance(value, dict):
        yield from object_mismatches(value, schema, where)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for at, one in enumerate(value):
            yield from mismatches(one, schema["items"], f"{where}.{at}")


def object_mismatches(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    properties = schema.get("properties")
    yield from (f"{where}.{name} is missing" for name in schema.get("required", ()) if name not in value)
    for name, one in value.items():
        if properties is None:
            others = schema.get("additionalProperties")
            yield from mismatches(one, others, f"{where}.{name}") if isinstance(others, dict) else ()
        elif name not in properties:
            yield f"{where}.{name} is not described"
        else:
            yield from mismatches(one, properties[name], f"{where}.{name}")


def has_type(value: Any, kind: str | None) -> bool:
    match kind:
        case None:
            return True
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "null":
            return value is None
        case _:
            return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[kind])
