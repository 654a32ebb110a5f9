"""A token of a namespace sees no events of others, by HTTP or gRPC, and no output of providers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rota.apiserver.access import Caller
from rota.apiserver.lookup import can_see_event
from rota.clusters import lifecycle
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.cluster import DEFAULT
from rota.model.ids import NodeId
from rota.model.plan import EventRecord, Plan
from rota.store.memory import MemoryStore
from rota.wire.generated import controller_pb2 as pb
from tests.apiserver.outside_controller import controller
from tests.apiserver.serving import RECONCILERS, Serving, data_of, serving

WITH_CLUSTERS = [*RECONCILERS, lifecycle.RECONCILER]
SECRET = "s3cr3t"
CLUSTER = {"name": "cloud", "provider": "command", "capacity": {"cpu": 4}, "max_nodes": 1}
CRON = {"name": "payroll", "schedule": "0 1 * * *", "job": {"command": ["true"]}}
OF_BETA = (
    EventRecord("cron.changed", "eve creates cron payroll", namespace="beta"),
    EventRecord("cron.skipped", "cron payroll: an instant passes", namespace="beta"),
    EventRecord("namespace.changed", "eve sets quota and weight of namespace beta", namespace="beta"),
    EventRecord("cluster.wished", f"eve creates cluster cloud: {SECRET}", cluster="cloud"),
)
ALPHA = Caller("al", Role.ADMIN, ("alpha",))


async def change_objects_of_beta(server: Serving) -> None:
    """Change crons, a namespace and a cluster, so that events about another tenant are committed."""
    for method, path, body in (
        ("POST", "/v1/crons", {**CRON, "namespace": "beta"}),
        ("POST", "/v1/crons/payroll/pause?namespace=beta", None),
        ("DELETE", "/v1/crons/payroll?namespace=beta", None),
        ("PUT", "/v1/namespaces/beta", {"weight": 7}),
        ("DELETE", "/v1/namespaces/beta", None),
        ("POST", "/v1/clusters", {**CLUSTER, "settings": command_lines()}),
        ("PATCH", "/v1/clusters/cloud", {"max_nodes": 2}),
    ):
        reply = await server.call(method, path, body)
        assert reply.status < 300, (path, reply)
    await server.submit(namespace="alpha")


def command_lines() -> dict[str, str]:
    return {verb: f"{SECRET} {verb}" for verb in ("create", "list", "remove")}


async def test_events_of_other_namespaces_are_hidden_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, WITH_CLUSTERS) as server, asyncio.timeout(10):
        token = server.token_for(Role.ADMIN, "alpha")
        headers = {"Authorization": token, "Accept": "text/event-stream"}
        async with server.stream("/v1/events?since=0.0", **headers) as lines:
            await change_objects_of_beta(server)
            streamed: list[Any] = []
            async for event in data_of(lines):
                streamed.append(event)
                if event["kind"] == "job.submitted":
                    break
        listed = (await server.call("GET", "/v1/events?since=0.0", Authorization=token)).json["events"]

    for seen in (streamed, listed):
        assert not [event for event in seen if event["kind"].partition(".")[0] in ("cron", "namespace")]
        assert not [event for event in seen if event["kind"] == "cluster.wished"]
        assert not [event for event in seen if SECRET in event["why"]]


async def test_events_of_other_namespaces_are_hidden_over_grpc(tmp_path: Path) -> None:
    async with controller(tmp_path, Role.ADMIN, "alpha") as outside, asyncio.timeout(10):
        watching = outside.stub.Watch(pb.WatchRequest(after="0.0"), metadata=outside.metadata)
        await outside.server.engine.ask("apiserver", lambda *_: Plan(events=OF_BETA))
        call = outside.schedule({"command": ["true"], "namespace": "alpha"})
        await call.read()
        kinds: list[str] = []
        while "job.submitted" not in kinds:
            kinds += [event.kind for event in (await watching.read()).events]
        call.cancel()
        watching.cancel()

    assert not [kind for kind in kinds if kind.startswith(("cron.", "namespace.", "cluster.wished"))]


async def test_events_of_the_own_namespace_are_visible(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, WITH_CLUSTERS) as server, asyncio.timeout(10):
        token = server.token_for(Role.VIEWER, "beta")
        await change_objects_of_beta(server)
        seen = (await server.call("GET", "/v1/events?since=0.0", Authorization=token)).json["events"]

    kinds = [(event["kind"], event["namespace"]) for event in seen]
    assert kinds.count(("cron.changed", "beta")) == 3
    assert kinds.count(("namespace.changed", "beta")) == 2
    assert not [event for event in seen if event["job"]]


@pytest.mark.parametrize(
    ("event", "seen"),
    [
        (EventRecord("cron.changed", "as stored by an older server"), False),
        (EventRecord("namespace.changed", "as stored by an older server"), False),
        (EventRecord("engine.parked", "cron failed on cron/beta/payroll"), False),
        (EventRecord("cluster.machine_failed", "provider said", cluster=DEFAULT), False),
        (EventRecord("cluster.changed", "provider said", cluster=DEFAULT), False),
        (EventRecord("a.kind.of.tomorrow", "what it tells is not known"), False),
        (EventRecord("cron.skipped", "own", namespace="alpha"), True),
        (EventRecord("cron.skipped", "other", namespace="alphaa"), False),
        (EventRecord("node.suspect", "silence", node=NodeId("n1")), True),
        (EventRecord("queue.changed", "2 jobs wait"), True),
    ],
    ids=lambda value: value.kind if isinstance(value, EventRecord) else "",
)
def test_an_event_without_a_namespace_is_visible_only_if_its_kind_is_public(
    event: EventRecord, seen: bool
) -> None:
    assert can_see_event(Mirror(), ALPHA, event) is seen
    assert can_see_event(Mirror(), Caller("ada", Role.VIEWER, ("*",)), event)


@pytest.mark.parametrize(
    ("role", "namespace", "seen"),
    [
        (Role.VIEWER, "*", False),
        (Role.SUBMITTER, "*", False),
        (Role.ADMIN, "alpha", False),
        (Role.OPERATOR, "*", True),
        (Role.ADMIN, "*", True),
    ],
)
def test_output_of_providers_is_visible_to_cluster_wide_operators(
    role: Role, namespace: str, seen: bool
) -> None:
    event = EventRecord("cluster.provider_said", "key", cluster=DEFAULT)

    assert can_see_event(Mirror(), Caller("ada", role, (namespace,)), event) is seen
