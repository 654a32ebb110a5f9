"""The client has a method for every route of the API, synchronous and asyncio."""

import re
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, NoReturn

import pytest

from rota.apiserver.openapi.document import OPERATIONS
from rota.apiserver.openapi.fields import Operation
from rota.client.aio.cluster import AsyncCluster
from rota.client.aio.job import AsyncJob
from rota.client.cluster import Cluster
from rota.client.context import Endpoint
from rota.client.job import Job
from rota.client.transport import ApiRequest, Transport
from rota.client.views import JobStatus

Call = Callable[[Cluster], Any]
JOB = {"command": ["true"]}


def job(cluster: Cluster) -> Job:
    return Job(cluster.transport, JobStatus("7", "active"))


def first(items: Iterator[Any]) -> Any:
    return next(items, None)


# The calls of each route; a route that streams, or that takes If-Match, is called in each way.
CALLS: dict[str, tuple[Call, ...]] = {
    "POST /v1/jobs": (lambda c: c.submit("true"), lambda c: first(c.follow_spec(JOB))),
    "GET /v1/jobs": (
        lambda c: first(c.jobs()),
        lambda c: first(c.job_pages()),
        lambda c: first(c.watch_jobs()),
        lambda c: c.moment(),
    ),
    "GET /v1/jobs/{ref}": (lambda c: c.job("last"), lambda c: job(c).refresh()),
    "PATCH /v1/jobs/{ref}": (lambda c: job(c).update({"priority": 9}, if_version=3),),
    "DELETE /v1/jobs/{ref}": (lambda c: job(c).delete(if_version=3),),
    "POST /v1/jobs/{ref}/cancel": (lambda c: job(c).cancel(),),
    "POST /v1/jobs/{ref}/kill": (lambda c: job(c).kill(),),
    "POST /v1/jobs/{ref}/pause": (lambda c: job(c).pause(),),
    "POST /v1/jobs/{ref}/resume": (lambda c: job(c).resume(),),
    "POST /v1/jobs/{ref}/restart": (lambda c: job(c).restart(),),
    "POST /v1/jobs/{ref}/move": (lambda c: job(c).move(),),
    "POST /v1/jobs/{ref}/release": (lambda c: job(c).release(),),
    "POST /v1/jobs/{ref}/rollback": (lambda c: job(c).rollback(),),
    "POST /v1/jobs/{ref}/resolve": (lambda c: job(c).resolve("again"),),
    "POST /v1/jobs/{ref}/rerun": (lambda c: job(c).rerun(),),
    "GET /v1/jobs/{ref}/follow": (lambda c: first(job(c).follow()),),
    "GET /v1/jobs/{ref}/why": (lambda c: job(c).why(),),
    "GET /v1/jobs/{ref}/tasks": (lambda c: first(job(c).tasks()), lambda c: first(job(c).watch_tasks())),
    "GET /v1/jobs/{ref}/tasks/{index}": (lambda c: job(c).task(0),),
    "GET /v1/jobs/{ref}/tasks/{index}/attempts": (lambda c: job(c).attempts(),),
    "GET /v1/jobs/{ref}/tasks/{index}/attempts/{attempt}": (lambda c: job(c).attempt(1),),
    "GET /v1/jobs/{ref}/tasks/{index}/attempts/{attempt}/result": (lambda c: job(c).result(1),),
    "POST /v1/jobs/{ref}/tasks/{index}/attempts/{attempt}/result": (
        lambda c: job(c).report(1, results={"a": 1}),
    ),
    "GET /v1/jobs/{ref}/logs": (lambda c: job(c).logs(), lambda c: first(job(c).follow_logs())),
    "GET /v1/jobs/{ref}/outputs": (lambda c: job(c).outputs(), lambda c: job(c).get()),
    "POST /v1/plan": (lambda c: c.plan("true"),),
    "POST /v1/plan/drain": (lambda c: c.nodes.plan_drain("n1"),),
    "GET /v1/nodes": (lambda c: c.nodes.list(), lambda c: first(c.nodes.watch())),
    "GET /v1/nodes/{ref}": (lambda c: c.nodes.get("n1"),),
    "PATCH /v1/nodes/{ref}": (
        lambda c: c.nodes.taint("n1", "a", if_etag='"x"'),
        lambda c: c.nodes.untaint("n1", "a"),
        lambda c: c.nodes.label("n1", {"a": "b"}),
        lambda c: c.nodes.unlabel("n1", "a"),
    ),
    "DELETE /v1/nodes/{ref}": (lambda c: c.nodes.delete("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/drain": (lambda c: c.nodes.drain("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/cordon": (lambda c: c.nodes.cordon("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/open": (lambda c: c.nodes.open("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/revoke": (lambda c: c.nodes.revoke("n1", if_etag='"x"'),),
    "GET /v1/brake": (lambda c: c.nodes.brake(),),
    "POST /v1/brake/release": (lambda c: c.nodes.release_brake(),),
    "GET /v1/namespaces": (lambda c: c.namespaces.list(),),
    "GET /v1/namespaces/{ref}": (lambda c: c.namespaces.get("ci"),),
    "PUT /v1/namespaces/{ref}": (lambda c: c.namespaces.set("ci", if_etag='"x"'),),
    "DELETE /v1/namespaces/{ref}": (lambda c: c.namespaces.delete("ci", if_etag='"x"'),),
    "GET /v1/clusters": (lambda c: c.clusters.list(),),
    "POST /v1/clusters": (lambda c: c.clusters.create("eu"),),
    "GET /v1/clusters/{ref}": (lambda c: c.clusters.get("eu"),),
    "PATCH /v1/clusters/{ref}": (lambda c: c.clusters.change("eu", drain=True, if_etag='"x"'),),
    "DELETE /v1/clusters/{ref}": (lambda c: c.clusters.delete("eu", if_etag='"x"'),),
    "POST /v1/crons": (lambda c: c.crons.create("tick", "* * * * *", JOB),),
    "GET /v1/crons": (lambda c: c.crons.list(),),
    "GET /v1/crons/{ref}": (lambda c: c.crons.get("tick"),),
    "PUT /v1/crons/{ref}": (lambda c: c.crons.replace("tick", "* * * * *", JOB, if_etag='"x"'),),
    "DELETE /v1/crons/{ref}": (lambda c: c.crons.delete("tick", if_etag='"x"'),),
    "POST /v1/crons/{ref}/pause": (lambda c: c.crons.pause("tick"),),
    "POST /v1/crons/{ref}/resume": (lambda c: c.crons.resume("tick"),),
    "POST /v1/crons/{ref}/run": (lambda c: c.crons.run("tick"),),
    "GET /v1/events": (lambda c: c.events(), lambda c: first(c.watch())),
    "GET /v1/server": (lambda c: c.server.status(),),
    "GET /v1/store/backup": (lambda c: c.server.back_up(BytesIO()),),
    "POST /v1/store/accept": (lambda c: c.server.accept_nodes(),),
    "GET /v1/openapi.json": (lambda c: c.server.openapi(),),
    "GET /metrics": (lambda c: c.server.metrics(),),
    "GET /healthz": (lambda c: c.server.is_alive(),),
    "GET /readyz": (lambda c: c.server.is_ready(),),
    "GET /v1/tokens": (lambda c: c.tokens.list(),),
    "POST /v1/tokens": (lambda c: c.tokens.create("ci", "viewer"),),
    "DELETE /v1/tokens/{ref}": (lambda c: c.tokens.revoke("t1"),),
    "GET /v1/join-tokens": (lambda c: c.join_tokens.list(),),
    "POST /v1/join-tokens": (lambda c: c.join_tokens.create(),),
    "DELETE /v1/join-tokens/{ref}": (lambda c: c.join_tokens.revoke("x"),),
    "GET /v1/ca": (lambda c: c.ca.get(),),
    "GET /v1/ca/rotation": (lambda c: c.ca.rotation(),),
    "POST /v1/ca/rotation": (lambda c: c.ca.rotate(), lambda c: c.ca.rotate("7d")),
    "POST /v1/ca/rotation/finish": (lambda c: c.ca.finish_rotation(force=True),),
    "POST /v1/ca/replace": (lambda c: c.ca.replace(),),
    "POST /v1/enroll": (lambda c: c.join_tokens.enroll("secret", "pem", "box"),),
    "GET /v1/watchers": (lambda c: c.watchers.list(),),
    "DELETE /v1/watchers/{ref}": (lambda c: c.watchers.remove("w1"),),
}


# Methods that send no request of their own, or only through other methods.
_OF_A_CLUSTER = {"close", "submit_spec", "plan_spec"}
_OF_A_JOB = {"id", "state", "exit_code", "wait", "wait_for", "as_completed", "step_logs"}
OTHERS: dict[type, set[str]] = {
    Cluster: _OF_A_CLUSTER,
    AsyncCluster: _OF_A_CLUSTER,
    Job: _OF_A_JOB,
    AsyncJob: _OF_A_JOB | {"warnings"},
}


class Sent(Exception):
    """A request was recorded instead of sent."""


class Recorder(Transport):
    """A transport that records requests instead of sending them."""

    def __init__(self) -> None:
        super().__init__(Endpoint("http://127.0.0.1:1", "t"), 0.0)
        self.requests: list[ApiRequest] = []

    def fetch(self, request: ApiRequest, patience_seconds: float | None = None) -> NoReturn:
        del patience_seconds
        self.requests.append(request)
        raise Sent

    def stream(
        self, request: ApiRequest, silence_seconds: float | None, deadline: float | None = None
    ) -> NoReturn:
        del silence_seconds, deadline
        self.requests.append(request)
        raise Sent

    download = stream


def parts(cluster: Cluster | AsyncCluster) -> list[Any]:
    """The sub-objects of a cluster: `cluster.nodes`, `cluster.tokens` and the others."""
    return [part for name, part in vars(cluster).items() if name != "transport" and not name.startswith("_")]


def requests_of(*calls: Call) -> list[ApiRequest]:
    recorder = Recorder()
    cluster = Cluster(Endpoint("http://127.0.0.1:1", "t"))
    for part in (cluster, *parts(cluster)):
        vars(part).update({name: recorder for name in vars(part) if name.endswith("transport")})
    for call in calls:
        with pytest.raises(Sent):
            call(cluster)
    return recorder.requests


UNCONNECTED = Cluster(Endpoint("http://127.0.0.1:1", "t"))
PARTS = [type(part) for cluster in (UNCONNECTED, AsyncCluster(UNCONNECTED)) for part in parts(cluster)]
CALLED = {name for calls in CALLS.values() for call in calls for name in call.__code__.co_names}


@pytest.mark.parametrize(
    "operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}"
)
def test_each_route_has_a_method_for_every_way_to_call_it(operation: Operation) -> None:
    sent = requests_of(*CALLS.get(f"{operation.method} {operation.path}", ()))
    path = re.compile(re.sub(r"{\w+}", "[^/]+", operation.path))

    assert sent, "give the client a method for it"
    assert {(request.method, bool(path.fullmatch(request.path))) for request in sent} == {
        (operation.method, True)
    }
    assert {name for request in sent for name in request.headers} >= {
        header.name for header in operation.headers if header.name != "Last-Event-ID"
    }
    if operation.events:
        assert "text/event-stream" in {request.headers.get("Accept") for request in sent}


def test_the_client_calls_no_route_that_does_not_exist() -> None:
    assert set(CALLS) == {f"{operation.method} {operation.path}" for operation in OPERATIONS}


@pytest.mark.parametrize("made", [Cluster, AsyncCluster, Job, AsyncJob])
def test_every_public_method_sends_a_route_or_is_built_on_one_that_does(made: type) -> None:
    assert public_names(made) - CALLED == OTHERS[made]


@pytest.mark.parametrize("made", PARTS, ids=lambda made: made.__name__)
def test_every_public_method_of_a_part_sends_a_route(made: type) -> None:
    assert public_names(made) <= CALLED


def test_the_asyncio_cluster_has_the_same_parts() -> None:
    plain, twin = vars(UNCONNECTED), vars(AsyncCluster(UNCONNECTED))

    assert plain.keys() - {"transport"} == twin.keys() - {"_sync"}


def public_names(made: type) -> set[str]:
    return {name for name in dir(made) if not name.startswith("_")}
