"""A token of some namespaces hears nothing of others, by HTTP and by gRPC; nor what providers were told."""

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


async def change_everything_of_beta(server: Serving) -> None:
    """Crons, namespace and cluster change in ways that tell of another tenant."""
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


async def test_events_of_other_namespaces_are_not_heard_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, WITH_CLUSTERS) as server, asyncio.timeout(10):
        token = server.token_for(Role.ADMIN, "alpha")
        said = {"Authorization": token, "Accept": "text/event-stream"}
        async with server.stream("/v1/events?since=0.0", **said) as lines:
            await change_everything_of_beta(server)
            streamed: list[Any] = []
            async for event in data_of(lines):
                streamed.append(event)
                if event["kind"] == "job.submitted":
                    break
        listed = (await server.call("GET", "/v1/events?since=0.0", Authorization=token)).json["events"]

    for heard in (streamed, listed):
        assert not [one for one in heard if one["kind"].partition(".")[0] in ("cron", "namespace")]
        assert not [one for one in heard if one["kind"] == "cluster.wished"]
        assert not [one for one in heard if SECRET in one["why"]]


async def test_events_of_other_namespaces_are_not_heard_over_grpc(tmp_path: Path) -> None:
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


async def test_events_of_its_own_namespace_are_heard(tmp_path: Path) -> None:
    async with serving(tmp_path, MemoryStore, WITH_CLUSTERS) as server, asyncio.timeout(10):
        token = server.token_for(Role.VIEWER, "beta")
        await change_everything_of_beta(server)
        heard = (await server.call("GET", "/v1/events?since=0.0", Authorization=token)).json["events"]

    kinds = [(one["kind"], one["namespace"]) for one in heard]
    assert kinds.count(("cron.changed", "beta")) == 3
    assert kinds.count(("namespace.changed", "beta")) == 2
    assert not [one for one in heard if one["job"]]


@pytest.mark.parametrize(
    ("event", "heard"),
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
    ids=lambda one: one.kind if isinstance(one, EventRecord) else "",
)
def test_what_belongs_to_no_namespace_is_heard_only_if_it_is_known_to_be_harmless(
    event: EventRecord, heard: bool
) -> None:
    assert can_see_event(Mirror(), ALPHA, event) is heard
    assert can_see_event(Mirror(), Caller("ada", Role.VIEWER, ("*",)), event)


@pytest.mark.parametrize(
    ("role", "namespace", "heard"),
    [
        (Role.VIEWER, "*", False),
        (Role.SUBMITTER, "*", False),
        (Role.ADMIN, "alpha", False),
        (Role.OPERATOR, "*", True),
        (Role.ADMIN, "*", True),
    ],
)
def test_words_of_providers_are_heard_by_operators_of_all(role: Role, namespace: str, heard: bool) -> None:
    event = EventRecord("cluster.provider_said", "key", cluster=DEFAULT)

    assert can_see_event(Mirror(), Caller("ada", role, (namespace,)), event) is heard
