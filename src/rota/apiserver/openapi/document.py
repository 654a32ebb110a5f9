"""Operations and their models -> the OpenAPI 3.1 document."""

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from rota.apiserver.openapi import clusters, crons, events, jobs, nodes, plans, server, tasks
from rota.apiserver.openapi.fields import IF_NONE_MATCH, TEXT, Operation, Parameter, Schema
from rota.apiserver.openapi.server import Problem

OPERATIONS: tuple[Operation, ...] = (
    *jobs.OPERATIONS,
    *tasks.OPERATIONS,
    *plans.OPERATIONS,
    *nodes.OPERATIONS,
    *clusters.OPERATIONS,
    *crons.OPERATIONS,
    *events.OPERATIONS,
    *server.OPERATIONS,
)
# Fields of these models may be absent, by their nature or as `fields` selects: none is marked as required.
PARTIAL = (
    jobs.JobLine,
    tasks.ExecutionStatus,
    nodes.Node,
    nodes.Namespace,
    clusters.Cluster,
    crons.CronLine,
    events.Event,
    server.Token,
)
PUBLIC_PATHS = ("/healthz", "/readyz", "/v1/ca", "/v1/enroll")  # the last one requires a join token
EVENT_STREAM = "text/event-stream"
_IN_PATH = {
    "ref": "its id; for a job also its name or `last`, for a node its name",
    "index": "number of the task, from 0",
    "attempt": "number of the attempt, from 1",
}
_GROUPS = {
    **dict.fromkeys(("tasks", "logs", "outputs"), "tasks and output"),
    **dict.fromkeys(("openapi.json", "metrics", "healthz", "readyz"), "server"),
    **dict.fromkeys(("join-tokens", "ca", "enroll", "watchers"), "joining"),
    "brake": "nodes",
    "plan": "plans",
}
_DESCRIPTION = (
    "JSON over HTTP. Every request carries a token: `Authorization: Bearer TOKEN`. Errors are problems with "
    "a `code`. A change is durable before its success is answered."
)


def build_document(version: str) -> Schema:
    schemas = _schemas()
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rota", "version": version, "description": _DESCRIPTION},
        "paths": _paths(),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def find_operation(method: str, path: str) -> Operation | None:
    return _BY_ROUTE.get((method, path))


def _schemas() -> dict[str, Schema]:
    models = [
        model for operation in OPERATIONS for model in (operation.answer, operation.body) if _is_model(model)
    ]
    _, found = msgspec.json.schema_components([*models, Problem], ref_template="#/components/schemas/{name}")
    for model in _descendants(*PARTIAL):
        found.get(model.__name__, {}).pop("required", None)
    return found


def _is_model(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, msgspec.Struct)


def _descendants(*models: type) -> Iterator[type]:
    for model in models:
        yield model
        yield from _descendants(*model.__subclasses__())


def _paths() -> Schema:
    paths: Schema = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return paths


def _operation(operation: Operation) -> Schema:
    names = re.findall(r"{(\w+)}", operation.path)
    in_path = [Parameter(name, _IN_PATH[name], where="path") for name in names]
    described: Schema = {
        "summary": operation.summary,
        "operationId": _id(operation),
        "tags": [_tag(operation.path)],
        "parameters": [
            _parameter(parameter)
            for parameter in (
                *in_path,
                *operation.query,
                *operation.headers,
                *_conditional_parameters(operation),
            )
        ],
        "responses": _responses(operation),
    }
    if operation.events:
        described["description"] = f"With `Accept: {EVENT_STREAM}` it is a stream: {operation.events}."
    if operation.body is not None:
        described["requestBody"] = {"content": {"application/json": {"schema": _schema(operation.body)}}}
    if operation.path in PUBLIC_PATHS:
        described["security"] = []
    return described


def _conditional_parameters(operation: Operation) -> tuple[Parameter, ...]:
    return (IF_NONE_MATCH,) if _has_etag(operation) else ()


def _has_etag(operation: Operation) -> bool:
    """Whether the response has an ETag: that of every GET that is not a stream."""
    return operation.method == "GET" and not isinstance(operation.answer, str)


def _responses(operation: Operation) -> Schema:
    good: Schema = {"description": HTTPStatus(operation.status).phrase}
    if isinstance(operation.answer, str):
        good["content"] = {media: {"schema": TEXT} for media in _media(operation.answer)}
    elif operation.answer is not None:
        good["content"] = {"application/json": {"schema": _schema(operation.answer)}}
        if operation.events:
            good["content"][EVENT_STREAM] = {"schema": TEXT}
    if operation.tag:
        good["headers"] = {
            "ETag": {"description": f"identifies {operation.tag}; for If-Match", "schema": TEXT}
        }
    unchanged: Schema = (
        {"304": {"description": "not changed: its ETag is that of If-None-Match"}}
        if _has_etag(operation)
        else {}
    )
    problem = {"application/problem+json": {"schema": _schema(Problem)}}
    return (
        {str(status): good for status in (operation.status, *operation.also)}
        | unchanged
        | {"default": {"description": "a problem", "content": problem}}
    )


def _media(first: str) -> tuple[str, ...]:
    return (first, "application/x-ndjson") if first in ("text/plain", "application/x-tar") else (first,)


def _parameter(parameter: Parameter) -> Schema:
    schema = {"type": "array", "items": parameter.schema} if parameter.many else parameter.schema
    described = {"name": parameter.name, "in": parameter.where, "description": parameter.description}
    return {**described, "required": parameter.where == "path", "schema": schema}


def _schema(model: Any) -> Schema:
    return {"$ref": f"#/components/schemas/{model.__name__}"} if _is_model(model) else {"type": "object"}


def _id(operation: Operation) -> str:
    """`POST /v1/jobs/{ref}/cancel` -> `post_jobs_ref_cancel`."""
    words = re.findall(r"\w+", operation.path.removeprefix("/v1").replace(".", "_"))
    return "_".join((operation.method.lower(), *words))


def _tag(path: str) -> str:
    """The group of a path, which is a section of the HTML page."""
    parts = path.removeprefix("/v1").strip("/").split("/")
    inner = parts[2] if parts[0] == "jobs" and len(parts) > 2 else ""
    return _GROUPS.get(inner) or _GROUPS.get(parts[0]) or parts[0]


_BY_ROUTE = {(operation.method, operation.path): operation for operation in OPERATIONS}
