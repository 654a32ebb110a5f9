"""Orders over controller.proto against real processes: pause, resume, restart, move, drain and plan."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rota.client.controller import Controller
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wire.generated import controller_pb2 as pb
from tests.system.controller import Outside
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system


@pytest.fixture
def outside(three: LocalCluster) -> Iterator[Outside]:
    with Outside(three) as connected:
        yield connected


def scheduled(outside: Outside, *command: str, **spec: Any) -> str:
    """The id of a job that a controller schedules."""
    stages = outside.call("Schedule", pb.ScheduleRequest(spec_json=json.dumps({**spec, "command": command})))
    job: str = next(stages).job
    stages.cancel()
    return job


def test_a_controller_moves_a_task(
    outside: Outside, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = scheduled(outside, *witness.script(gate.wait))
    before = witness.wait_for(1)[0].node
    until(lambda: three.count(job, "running") == 1, "it runs")
    target = next(f"node-{number}" for number in (1, 2, 3) if f"node-{number}" != before)
    request = pb.MoveRequest(job=job, indices=[0], to=target, idempotency_key="one-move")
    reply = outside.call("Move", request)
    seen = witness.wait_for(2)
    until(lambda: three.count(job, "running") == 1, "it runs again")
    again = outside.call("Move", request)
    code, why = outside.refusal("Move", pb.MoveRequest(job=job, to=target))
    gate.open()
    stages = [part.stage for part in outside.call("Follow", pb.FollowRequest(job=job))]

    assert (reply.job, reply.state) == (again.job, again.state) == (job, "active")
    assert [start.node for start in seen] == [before, target]
    assert (code, why) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        f"{target} has task 0 of job {job} already (see rota show {job})",
    )
    assert stages[-1].state == "succeeded"
    assert witness.starts() == {0: 2}


def test_a_controller_pauses_resumes_and_restarts(
    outside: Outside, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = scheduled(outside, *witness.script(gate.wait))
    witness.wait_for(1)
    until(lambda: three.count(job, "running") == 1, "it runs")

    assert outside.call("Pause", pb.PauseRequest(job=job, stop=True)).state == "paused"
    until(lambda: three.count(job, "pending") == 1, "it has stopped")
    assert outside.call("Resume", pb.ResumeRequest(job=job)).state == "active"
    witness.wait_for(2)
    until(lambda: three.count(job, "running") == 1, "it runs again")
    assert outside.call("Restart", pb.RestartRequest(job=job, indices=[0])).state == "active"
    witness.wait_for(3)
    until(lambda: three.count(job, "running") == 1, "it runs for the third time")
    gate.open()
    stages = [part.stage for part in outside.call("Follow", pb.FollowRequest(job=job))]
    assert stages[-1].state == "succeeded"
    assert outside.refusal("Restart", pb.RestartRequest(job=job))[0] is grpc.StatusCode.FAILED_PRECONDITION


def test_a_controller_drains_a_node_and_its_work_moves(
    outside: Outside, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = scheduled(outside, *witness.script(gate.wait))
    before = witness.wait_for(1)[0].node
    until(lambda: three.count(job, "running") == 1, "it runs")
    reply = outside.call("Drain", pb.DrainRequest(node=before, deadline_ms=0))
    seen = witness.wait_for(2)
    gate.open()
    list(outside.call("Follow", pb.FollowRequest(job=job)))
    three.rota("node", "open", before)

    assert (reply.eligibility, reply.running) == ("draining", 1)
    assert seen[1].node != before
    assert outside.refusal("Drain", pb.DrainRequest(node="nowhere"))[0] is grpc.StatusCode.NOT_FOUND


def test_a_controller_asks_for_a_plan(outside: Outside) -> None:
    fits = outside.call("Plan", pb.PlanRequest(spec_json='{"command": ["true"], "count": 3}'))
    never = outside.call("Plan", pb.PlanRequest(spec_json='{"command": ["true"], "cpu": 500}'))
    code, why = outside.refusal("Plan", pb.PlanRequest(spec_json='{"command": ["true"], "cpu": -1}'))

    assert (fits.outcome, fits.count, fits.starts) == ("now", 3, 3)
    assert sum(place.tasks for place in fits.places) == 3
    assert json.loads(fits.plan_json)["sentence"] == fits.sentence
    assert (never.outcome, never.starts, list(never.places)) == ("never", 0, [])
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert why.startswith("cpu: ")


def test_orders_need_the_roles_that_they_need_over_http(three: LocalCluster, outside: Outside) -> None:
    job = scheduled(outside, "sleep", "600")
    made = three.call("POST", "/v1/tokens", {"name": "onlooker", "role": "viewer"})
    requests = {
        "Pause": pb.PauseRequest(job=job),
        "Resume": pb.ResumeRequest(job=job),
        "Restart": pb.RestartRequest(job=job),
        "Move": pb.MoveRequest(job=job),
        "Drain": pb.DrainRequest(node="node-1"),
        "Plan": pb.PlanRequest(spec_json='{"command": ["true"]}'),
    }
    with Outside(three, made.body["token"]) as onlooker:
        codes = {name: onlooker.refusal(name, request)[0] for name, request in requests.items()}
    outside.call("Stop", pb.StopRequest(job=job, kill=True))

    assert codes == dict.fromkeys(requests, grpc.StatusCode.PERMISSION_DENIED)


def test_the_python_controller_has_the_same_orders(three: LocalCluster, witness: Witness, gate: Gate) -> None:
    with Controller(three.grpc, three.token, "orders") as controller:
        job = controller.submit({"command": witness.script(gate.wait)}, "orders-job")
        witness.wait_for(1)
        until(lambda: three.count(job, "running") == 1, "it runs")
        states = [controller.pause(job), controller.resume(job), controller.restart(job, 0)]
        witness.wait_for(2)
        until(lambda: three.count(job, "running") == 1, "it runs again")
        states.append(controller.move(job, 0))
        seen = witness.wait_for(3)
        until(lambda: three.count(job, "running") == 1, "it runs elsewhere")
        drained = controller.drain(seen[1].node)
        three.rota("node", "open", seen[1].node)
        summary = next(controller.statistics(1000))
        outcome = controller.plan({"command": ["true"]}).outcome
        gate.open()

    assert states == ["paused", "active", "active", "active"]
    assert seen[2].node != seen[1].node
    assert drained in ("draining", "drained")
    assert {len(summary.nodes), outcome} == {3, "now"}
