"""A job that no node can run, by real processes: its user sees the reason, once, and what would help."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.test_controller import Controller, events_until

pytestmark = pytest.mark.system
NODES = ("node-1", "node-2", "node-3")


@pytest.fixture
def controller(three: LocalCluster) -> Iterator[Controller]:
    with Controller(three) as connected:
        yield connected


def test_a_job_that_every_node_refuses_says_so_with_the_reasons(
    three: LocalCluster, controller: Controller, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"

    stream = controller.schedule("true", workdir=str(missing))
    seen_events, stage = until_reason(stream)

    assert [event.kind for event in seen_events if event.kind.startswith("placement.")] == [
        "placement.impossible"
    ]
    assert sum(event.state == "refused" and event.kind == "task.ended" for event in seen_events) == len(NODES)
    assert "cannot be placed: 3 of 3 nodes refused it lately" in seen_events[-1].why
    assert (stage.state, stage.final) == ("active", False)
    assert all(f"{name} (" in stage.reason and "missing" in stage.reason for name in NODES)
    job = seen_events[-1].job
    assert three.call("GET", f"/v1/jobs/{job}").body["reason"] == stage.reason
    assert stage.reason in three.rota("job", "show", job).out
    assert "3 of 3 nodes refused it lately" in three.rota("why", job).out

    missing.mkdir()  # the next offer, when the refusals have lapsed, is accepted

    rest = list(stream)
    kinds = [part.task.kind for part in rest if part.WhichOneof("what") == "task"]
    assert rest[-1].stage.state == "succeeded"
    assert "placement.impossible" not in kinds
    assert kinds.count("placement.possible") == 1


def test_a_job_that_does_not_wait_is_rejected_when_every_node_has_refused_it(
    three: LocalCluster, controller: Controller, tmp_path: Path
) -> None:
    seen_events = list(
        controller.schedule("true", workdir=str(tmp_path / "no"), count=2, when_unschedulable="reject")
    )

    last = seen_events[-1].stage
    kinds = [part.task.kind for part in seen_events if part.WhichOneof("what") == "task"]
    assert (last.state, last.final) == ("rejected", True)
    assert all(f"{name} (" in last.reason for name in NODES)
    assert kinds.count("placement.impossible") == 1
    assert three.call("GET", f"/v1/jobs/{seen_events[-1].job}").body["state"] == "rejected"


def test_a_job_too_large_for_any_node_says_so_immediately(
    three: LocalCluster, controller: Controller
) -> None:
    watching = controller.watch(after="0.0")

    stream = controller.schedule("true", cpu=500)
    seen_events, stage = until_reason(stream)

    job = seen_events[-1].job
    assert stage.reason == "3 of 3 nodes have too little cpu in all: largest 4, asked 500"
    assert [event.kind for event in seen_events] == ["placement.impossible"]
    events = [event for event in events_until(watching, job, "placement.impossible") if event.job == job]
    revisions = {event.kind: event.sequence.partition(".")[0] for event in events}
    assert revisions["placement.impossible"] == revisions["job.submitted"]
    watching.cancel()
    assert controller.stop(job).state in ("canceling", "canceled")


def test_a_job_in_an_elastic_cluster_is_accepted_and_requests_a_node(
    three: LocalCluster, controller: Controller
) -> None:
    stream = controller.schedule("true", cpu=500, when_unschedulable="scale")
    seen_events, _ = until_reason(stream)

    asked = next(event for event in seen_events if event.kind == "placement.needs_node")
    assert "asks for a node in cluster default (rota node token)" in asked.why
    shown = three.call("GET", f"/v1/jobs/{asked.job}").body
    assert shown["spec"]["when_unschedulable"] == "scale"
    assert controller.stop(asked.job).state in ("canceling", "canceled")


def test_the_event_of_an_unplaceable_job_is_not_repeated_after_a_restart(cluster: LocalCluster) -> None:
    job = cluster.submit("true", cpu=500)
    until(lambda: bool(cluster.call("GET", f"/v1/jobs/{job}").body["reason"]), "it says why")

    cluster.kill_server()
    cluster.start_server()
    cluster.wait_for_nodes()
    other = cluster.submit("true", cpu=600)
    with Controller(cluster) as controller:
        events = events_until(controller.watch(after="0.0"), other, "placement.impossible")

    assert [event.job for event in events if event.kind == "placement.impossible"] == [job, other]
    assert "asked 500" in cluster.call("GET", f"/v1/jobs/{job}").body["reason"]


def until_reason(stream: Any) -> tuple[list[Any], Any]:
    """The events of a job's stream before the first stage with a reason, and that stage."""
    events: list[Any] = []
    for part in stream:
        if part.WhichOneof("what") == "task":
            events.append(part.task)
        elif part.stage.reason:
            return events, part.stage
    raise AssertionError("the stream has ended without a reason")
