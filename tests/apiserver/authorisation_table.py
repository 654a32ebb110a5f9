"""The role and namespace that each HTTP route and gRPC call needs; an unlisted one fails the matrix."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from rota.identity.tokens import Role
from rota.wire.generated import controller_pb2 as pb

OWN = "alpha"  # the namespace that requests are about
CRON = {"schedule": "0 1 * * *", "job": {"command": ["true"]}, "overlap": "allow"}
SPEC = {"command": ["true"], "namespace": OWN}
CLUSTER = {"name": "cloud", "provider": "command", "capacity": {"cpu": 4}, "max_nodes": 1}
SETTINGS = dict.fromkeys(("create", "list", "remove"), "true")


class Where(StrEnum):
    OPEN = "without a token"
    ANYWHERE = "in any namespace: the answer is filtered"
    IN_NAMESPACE = "in the namespace of the object"
    EVERYWHERE = "in all namespaces"
    GATEWAY = "by the worker contract, whose errors all have status 500"


class Need(NamedTuple):
    where: Where
    role: Role = Role.VIEWER
    body: Mapping[str, Any] | None = None
    query: str = ""


def reads(where: Where = Where.ANYWHERE, query: str = "") -> Need:
    return Need(where, Role.VIEWER, None, query)


def changes(body: Mapping[str, Any] | None = None, role: Role = Role.SUBMITTER, query: str = "") -> Need:
    return Need(Where.IN_NAMESPACE, role, body or {}, query)


def administers(role: Role, body: Mapping[str, Any] | None = None) -> Need:
    return Need(Where.EVERYWHERE, role, body)


_JOB = "/v1/jobs/{ref}"
_TASK = f"{_JOB}/tasks/{{index}}"
_ATTEMPT = f"{_TASK}/attempts/{{attempt}}"
_OF_OWN = f"?namespace={OWN}"

HTTP: Mapping[str, Need] = {
    "POST /v1/jobs": changes(SPEC),
    "GET /v1/jobs": reads(),
    f"GET {_JOB}": reads(Where.IN_NAMESPACE),
    f"DELETE {_JOB}": Need(Where.IN_NAMESPACE, Role.SUBMITTER),
    f"POST {_JOB}/rerun": changes(),
    f"GET {_JOB}/follow": reads(Where.IN_NAMESPACE),
    f"GET {_JOB}/why": reads(Where.IN_NAMESPACE),
    f"GET {_JOB}/tasks": reads(Where.IN_NAMESPACE),
    f"GET {_TASK}": reads(Where.IN_NAMESPACE),
    f"GET {_TASK}/attempts": reads(Where.IN_NAMESPACE),
    f"GET {_ATTEMPT}": reads(Where.IN_NAMESPACE),
    f"POST {_ATTEMPT}/result": changes({"results": {}}, Role.OPERATOR),
    f"GET {_ATTEMPT}/result": reads(Where.IN_NAMESPACE),
    f"PATCH {_JOB}": changes({"priority": 40}),
    **{f"POST {_JOB}/{what}": changes() for what in ("cancel", "kill", "restart", "move", "release")},
    **{f"POST {_JOB}/{what}": changes() for what in ("rollback", "pause", "resume")},
    f"POST {_JOB}/resolve": changes({"word": "again"}),
    f"GET {_JOB}/logs": reads(Where.IN_NAMESPACE),
    f"GET {_JOB}/outputs": reads(Where.IN_NAMESPACE),
    "POST /v1/plan": changes(SPEC),
    "POST /v1/plan/drain": administers(Role.OPERATOR, {"nodes": ["n1"]}),
    "GET /v1/nodes": reads(),
    "GET /v1/brake": reads(),
    "POST /v1/brake/release": administers(Role.OPERATOR, {}),
    "GET /v1/nodes/{ref}": reads(),
    "PATCH /v1/nodes/{ref}": administers(Role.OPERATOR, {"taint": ["a"]}),
    "DELETE /v1/nodes/{ref}": administers(Role.OPERATOR),
    **{
        f"POST /v1/nodes/{{ref}}/{what}": administers(Role.OPERATOR, {})
        for what in ("drain", "cordon", "open")
    },
    "POST /v1/nodes/{ref}/revoke": administers(Role.OPERATOR, {}),
    "GET /v1/join-tokens": administers(Role.ADMIN),
    "POST /v1/join-tokens": administers(Role.ADMIN, {}),
    "DELETE /v1/join-tokens/{ref}": administers(Role.ADMIN),
    "GET /v1/ca": reads(Where.OPEN),
    "GET /v1/ca/rotation": administers(Role.ADMIN),
    "POST /v1/ca/rotation": administers(Role.ADMIN, {}),
    "POST /v1/ca/rotation/finish": administers(Role.ADMIN, {}),
    "POST /v1/ca/replace": administers(Role.ADMIN, {}),
    "POST /v1/enroll": Need(Where.OPEN, body={}),
    "GET /v1/watchers": administers(Role.ADMIN),
    "DELETE /v1/watchers/{ref}": administers(Role.ADMIN),
    "GET /v1/tokens": administers(Role.ADMIN),
    "POST /v1/tokens": administers(Role.ADMIN, {"name": "made", "role": "viewer"}),
    "DELETE /v1/tokens/{ref}": administers(Role.ADMIN),
    "GET /v1/namespaces": reads(),
    "GET /v1/namespaces/{ref}": reads(Where.IN_NAMESPACE),
    "PUT /v1/namespaces/{ref}": administers(Role.OPERATOR, {}),
    "DELETE /v1/namespaces/{ref}": administers(Role.OPERATOR),
    "GET /v1/clusters": reads(),
    "POST /v1/clusters": administers(Role.ADMIN, {**CLUSTER, "settings": SETTINGS}),
    "GET /v1/clusters/{ref}": reads(),
    "PATCH /v1/clusters/{ref}": administers(Role.OPERATOR, {"max_nodes": 2}),
    "DELETE /v1/clusters/{ref}": administers(Role.OPERATOR),
    "POST /v1/crons": changes({**CRON, "name": "tick", "namespace": OWN}),
    "GET /v1/crons": reads(),
    "GET /v1/crons/{ref}": reads(Where.IN_NAMESPACE, _OF_OWN),
    "PUT /v1/crons/{ref}": changes(CRON, query=_OF_OWN),
    "DELETE /v1/crons/{ref}": Need(Where.IN_NAMESPACE, Role.SUBMITTER, None, _OF_OWN),
    **{f"POST /v1/crons/{{ref}}/{what}": changes(query=_OF_OWN) for what in ("pause", "resume", "run")},
    "GET /v1/events": reads(),
    "GET /v1/server": reads(),
    "GET /healthz": reads(Where.OPEN),
    "GET /readyz": reads(Where.OPEN),
    "GET /v1/openapi.json": reads(),
    "GET /metrics": administers(Role.VIEWER),
    "GET /v1/store/backup": administers(Role.ADMIN),
    "POST /v1/store/accept": administers(Role.ADMIN, {}),
    **{f"POST /{what}": Need(Where.GATEWAY, body={}) for what in ("start", "stop", "query", "stream")},
}


class Call(NamedTuple):
    where: Where
    role: Role
    request: Callable[[str], Any]  # from the id of a job in OWN


def of_job(message: Any, **fields: Any) -> Call:
    return Call(Where.IN_NAMESPACE, Role.SUBMITTER, lambda job: message(job=job, **fields))


_SPEC = json.dumps(SPEC)
GRPC: Mapping[str, Call] = {
    "Schedule": Call(Where.IN_NAMESPACE, Role.SUBMITTER, lambda _: pb.ScheduleRequest(spec_json=_SPEC)),
    "Follow": Call(Where.IN_NAMESPACE, Role.VIEWER, lambda job: pb.FollowRequest(job=job)),
    "ScheduleMany": Call(
        Where.IN_NAMESPACE,
        Role.SUBMITTER,
        lambda _: pb.BulkRequest(id="a", schedule=pb.BulkJob(spec_json=_SPEC)),
    ),
    "Stop": of_job(pb.StopRequest),
    "Update": of_job(pb.UpdateRequest, fields_json='{"priority": 40}'),
    "Delete": of_job(pb.DeleteRequest),
    "Pause": of_job(pb.PauseRequest),
    "Resume": of_job(pb.ResumeRequest),
    "Restart": of_job(pb.RestartRequest),
    "Move": of_job(pb.MoveRequest),
    "Drain": Call(Where.EVERYWHERE, Role.OPERATOR, lambda _: pb.DrainRequest(node="n1")),
    "Plan": Call(Where.IN_NAMESPACE, Role.SUBMITTER, lambda _: pb.PlanRequest(spec_json=_SPEC)),
    "Watch": Call(Where.ANYWHERE, Role.VIEWER, lambda _: pb.WatchRequest()),
    "Acknowledge": Call(
        Where.ANYWHERE, Role.SUBMITTER, lambda _: pb.AcknowledgeRequest(subscriber="a", sequence="1.0")
    ),
    "Resolve": of_job(
        pb.ResolveRequest, subscriber="a", first_index=[0], last_index=[0], attempt=1, word="again"
    ),
    "State": Call(Where.ANYWHERE, Role.VIEWER, lambda _: pb.StateRequest()),
    "SetPace": Call(
        Where.EVERYWHERE, Role.OPERATOR, lambda _: pb.SetPaceRequest(least_ms=1000, most_ms=5000)
    ),
}


def is_allowed(where: Where, needed: Role, role: Role, namespace: str) -> bool:
    """Whether the table lets in a valid token of one namespace, or of all (`*`)."""
    match where:
        case Where.OPEN | Where.GATEWAY:
            return True
        case Where.ANYWHERE:
            return role >= needed
        case Where.IN_NAMESPACE:
            return role >= needed and namespace in (OWN, "*")
        case Where.EVERYWHERE:
            return role >= needed and namespace == "*"
