"""A task is moved to another node: stopped on its node, started once on the other, without using a retry."""

from collections.abc import Iterator

import pytest

from rota.client.cluster import Cluster, connect
from rota.client.errors import Conflict, NotFound
from rota.client.job import Job
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client(three: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{three.http}", token=three.token) as opened:
        yield opened


def running(job: Job, index: int = 0) -> str:
    """The node on which a task runs, once it does."""
    until(lambda: job.task(index).state == "running", f"task {index} runs")
    node = job.task(index).node
    assert node is not None
    return node


def others(three: LocalCluster, node: str) -> list[str]:
    names = [node["name"] for node in three.call("GET", "/v1/nodes").body["nodes"]]
    return [name for name in names if name != node]


def test_a_task_moves_to_the_named_node(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = client.submit(*witness.script(gate.wait), retries=0)
    before = running(job)
    witness.wait_for(1)
    target = others(three, before)[-1]
    ran = three.rota("job", "move", f"{job.id}.0", "--to", target)
    seen = witness.wait_for(2)
    gate.open()

    assert ran.code == 0, ran.err
    assert [start.node for start in seen] == [before, target]
    assert job.wait(60).state == "succeeded"  # with no retries left
    assert [attempt.state for attempt in job.task(0).attempts] == ["stopped", "succeeded"]


def test_a_task_moves_away_from_its_node_and_the_others_stay(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = client.submit(*witness.script(gate.wait), count=3)
    until(lambda: three.count(job.id, "running") == 3, "all tasks run")
    before = {start.index: start.node for start in witness.wait_for(3)}
    ran = three.rota("job", "move", f"{job.id}.1", "--away")
    last = witness.wait_for(4)[-1]
    gate.open()

    assert ran.code == 0, ran.err
    assert (last.index, last.attempt) == (1, 2)
    assert last.node != before[1]
    assert job.wait(60).state == "succeeded"
    assert witness.starts() == {0: 1, 1: 2, 2: 1}


def test_a_moved_task_that_runs_one_at_a_time_never_overlaps(
    client: Cluster, witness: Witness, gate: Gate
) -> None:
    """Each attempt records its end after a slow stop: the next one may start only after that."""
    stop = f"trap 'sleep 1; echo \"0 $ROTA_ATTEMPT end\" >> {witness.path}; exit 0' TERM"
    script = f'echo "0 $ROTA_ATTEMPT $ROTA_NODE" >> {witness.path}; {gate.wait}'
    job = client.submit("sh", "-c", f"{stop}; {script}", run="one_at_a_time")
    before = running(job)
    witness.wait_for(1)
    job.move(0)
    seen = witness.wait_for(3)
    gate.open()

    assert [(start.attempt, start.node) for start in seen[:2]] == [(1, before), (1, "end")]
    assert seen[2].attempt == 2
    assert seen[2].node != before
    assert job.wait(60).state == "succeeded"


def test_a_move_is_refused_with_the_reason(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    once = client.submit(*witness.script(gate.wait), run="at_most_once")
    large = client.submit("sh", "-c", gate.wait, cpu=2)
    there, where = running(large), running(once)
    witness.wait_for(1)
    pinned = client.submit("sh", "-c", gate.wait, on=where)
    running(pinned)

    with pytest.raises(Conflict, match="at_most_once, and has started"):
        once.move()
    with pytest.raises(Conflict, match="already"):
        large.move(to=there)
    with pytest.raises(NotFound, match="nowhere"):
        large.move(to="nowhere")
    elsewhere = others(three, where)[0]
    with pytest.raises(Conflict, match=f"node == {where}: has {elsewhere}"):
        pinned.move(to=elsewhere)
    gate.open()
    assert once.wait(60).state == "succeeded"
    assert witness.starts() == {0: 1}
    assert pinned.wait(60).state == large.wait(60).state == "succeeded"


def test_a_move_is_refused_while_the_target_is_full_and_the_task_runs_on(
    client: Cluster, three: LocalCluster, gate: Gate
) -> None:
    full = client.submit("sh", "-c", gate.wait, cpu=4)
    job = client.submit("sh", "-c", gate.wait, cpu=1)
    target, before = running(full), running(job)

    with pytest.raises(Conflict, match="0 cpu free, asked 1"):
        job.move(to=target)
    assert running(job) == before
    gate.open()
    assert full.wait(60).state == job.wait(60).state == "succeeded"
    assert len(job.task(0).attempts) == 1


def test_a_repeated_move_moves_once(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = client.submit(*witness.script(gate.wait))
    running(job)
    witness.wait_for(1)
    first = three.call("POST", f"/v1/jobs/{job.id}/move", {}, **{"Idempotency-Key": "once"})
    witness.wait_for(2)
    running(job)
    again = three.call("POST", f"/v1/jobs/{job.id}/move", {}, **{"Idempotency-Key": "once"})
    gate.open()

    assert (first.status, again.status) == (202, 202)
    assert job.wait(60).state == "succeeded"
    assert witness.starts() == {0: 2}


def test_the_request_and_the_move_are_events(client: Cluster, three: LocalCluster, gate: Gate) -> None:
    since = three.call("GET", "/v1/nodes").body["seq"]
    job = client.submit("sh", "-c", gate.wait)
    before = running(job)
    job.move(0)
    until(lambda: job.task(0).attempt == 2, "the second attempt")
    after = running(job)
    gate.open()
    job.wait(60)

    events = three.call("GET", f"/v1/events?since={since}&job={job.id}").body["events"]
    moves = [(event["kind"], event["why"]) for event in events if event["kind"].startswith("task.mov")]
    assert moves == [
        ("task.moving", f"local moves task 0 of job {job.id} away from {before}"),
        ("task.moved", f"task 0 of job {job.id}: moved from {before} to {after}"),
    ]


def test_a_server_killed_during_a_move_completes_it(
    cluster: LocalCluster, witness: Witness, gate: Gate
) -> None:
    with connect(f"http://{cluster.http}", token=cluster.token) as client:
        slow = f"trap 'sleep 3; exit 0' TERM; {gate.wait}"
        job = client.submit(*witness.script(slow))
        before = running(job)
        witness.wait_for(1)
        target = next(one for one in others(cluster, before))
        job.move(to=target)
        cluster.kill_server()
        cluster.start_server()
        cluster.wait_for_nodes()
        seen = witness.wait_for(2)
        gate.open()

        assert [(start.attempt, start.node) for start in seen] == [(1, before), (2, target)]
        assert job.wait(60).state == "succeeded"
