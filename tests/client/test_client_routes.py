"""Every route of the API can be called with the client, from plain code and from asyncio alike."""

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


# By route; a route that can be followed, or guarded by If-Match, is called in each way.
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
    "POST /v1/plan/drain": (lambda c: c.plan_drain("n1"),),
    "GET /v1/nodes": (lambda c: c.nodes(), lambda c: first(c.watch_nodes())),
    "GET /v1/nodes/{ref}": (lambda c: c.node("n1"),),
    "PATCH /v1/nodes/{ref}": (
        lambda c: c.taint("n1", "a", if_etag='"x"'),
        lambda c: c.untaint("n1", "a"),
        lambda c: c.label_node("n1", {"a": "b"}),
        lambda c: c.unlabel_node("n1", "a"),
    ),
    "DELETE /v1/nodes/{ref}": (lambda c: c.forget_node("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/drain": (lambda c: c.drain("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/cordon": (lambda c: c.cordon("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/open": (lambda c: c.open("n1", if_etag='"x"'),),
    "POST /v1/nodes/{ref}/revoke": (lambda c: c.revoke_node("n1", if_etag='"x"'),),
    "GET /v1/brake": (lambda c: c.brake(),),
    "POST /v1/brake/release": (lambda c: c.release_brake(),),
    "GET /v1/namespaces": (lambda c: c.namespaces(),),
    "GET /v1/namespaces/{ref}": (lambda c: c.namespace("ci"),),
    "PUT /v1/namespaces/{ref}": (lambda c: c.set_namespace("ci", if_etag='"x"'),),
    "DELETE /v1/namespaces/{ref}": (lambda c: c.forget_namespace("ci", if_etag='"x"'),),
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
    "GET /v1/server": (lambda c: c.server(),),
    "GET /v1/store/backup": (lambda c: c.back_up(BytesIO()),),
    "POST /v1/store/accept": (lambda c: c.accept_nodes(),),
    "GET /v1/openapi.json": (lambda c: c.openapi(),),
    "GET /metrics": (lambda c: c.metrics(),),
    "GET /healthz": (lambda c: c.is_alive(),),
    "GET /readyz": (lambda c: c.is_ready(),),
    "GET /v1/tokens": (lambda c: c.tokens(),),
    "POST /v1/tokens": (lambda c: c.make_token("ci", "viewer"),),
    "DELETE /v1/tokens/{ref}": (lambda c: c.revoke_token("t1"),),
    "GET /v1/join-tokens": (lambda c: c.join_tokens(),),
    "POST /v1/join-tokens": (lambda c: c.join_token(),),
    "DELETE /v1/join-tokens/{ref}": (lambda c: c.revoke_join_token("x"),),
    "GET /v1/ca": (lambda c: c.authority(),),
    "GET /v1/ca/rotation": (lambda c: c.ca_rotation(),),
    "POST /v1/ca/rotation": (lambda c: c.rotate_ca(), lambda c: c.rotate_ca("7d")),
    "POST /v1/ca/rotation/finish": (lambda c: c.finish_ca_rotation(force=True),),
    "POST /v1/ca/replace": (lambda c: c.replace_ca(),),
    "POST /v1/enroll": (lambda c: c.enroll("secret", "pem", "box"),),
    "GET /v1/watchers": (lambda c: c.watchers(),),
    "DELETE /v1/watchers/{ref}": (lambda c: c.remove_watcher("w1"),),
}


# What sends nothing of its own, or only what others send, too.
_OF_A_CLUSTER = {"close", "submit_spec", "plan_spec"}
_OF_A_JOB = {"id", "state", "exit_code", "wait", "wait_for", "as_completed", "step_logs"}
OTHERS: dict[type, set[str]] = {
    Cluster: _OF_A_CLUSTER,
    AsyncCluster: _OF_A_CLUSTER,
    Job: _OF_A_JOB,
    AsyncJob: _OF_A_JOB | {"status", "warnings"},
}


class Heard(Exception):
    """What was to be sent is known; nothing is answered."""


class Recorder(Transport):
    """Keeps the requests that would be sent."""

    def __init__(self) -> None:
        super().__init__(Endpoint("http://127.0.0.1:1", "t"), 0.0)
        self.requests: list[ApiRequest] = []

    def fetch(self, request: ApiRequest, patience_seconds: float | None = None) -> NoReturn:
        del patience_seconds
        self.requests.append(request)
        raise Heard

    def stream(
        self, request: ApiRequest, silence_seconds: float | None, deadline: float | None = None
    ) -> NoReturn:
        del silence_seconds, deadline
        self.requests.append(request)
        raise Heard

    download = stream


def requests_of(*calls: Call) -> list[ApiRequest]:
    recorder = Recorder()
    cluster = Cluster(Endpoint("http://127.0.0.1:1", "t"))
    for part in (cluster, cluster.crons, cluster.clusters):
        vars(part).update({name: recorder for name in vars(part) if name.endswith("transport")})
    for call in calls:
        with pytest.raises(Heard):
            call(cluster)
    return recorder.requests


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_a_route_has_a_method_that_calls_it_in_every_way_it_can_be_called(operation: Operation) -> None:
    sent = requests_of(*CALLS.get(f"{operation.method} {operation.path}", ()))
    path = re.compile(re.sub(r"{\w+}", "[^/]+", operation.path))

    assert sent, "give the client a method for it"
    assert {(one.method, bool(path.fullmatch(one.path))) for one in sent} == {(operation.method, True)}
    assert {name for one in sent for name in one.headers} >= {
        header.name for header in operation.headers if header.name != "Last-Event-ID"
    }
    if operation.events:
        assert "text/event-stream" in {one.headers.get("Accept") for one in sent}


def test_no_route_is_called_that_is_not_there() -> None:
    assert set(CALLS) == {f"{one.method} {one.path}" for one in OPERATIONS}


@pytest.mark.parametrize("made", [Cluster, AsyncCluster, Job, AsyncJob])
def test_every_public_method_is_among_the_calls_or_made_of_them(made: type) -> None:
    named = {name for calls in CALLS.values() for call in calls for name in call.__code__.co_names}

    assert {name for name in dir(made) if not name.startswith("_")} - named == OTHERS[made]
