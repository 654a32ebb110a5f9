"""A job is updated while it runs: immediately where that is possible, else from the next attempt on."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from rota.client.cluster import Cluster
from rota.client.errors import Conflict
from rota.client.job import Job
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate, Witness

pytestmark = pytest.mark.system

SAYS = 'echo "$ROTA_INDEX ${{COLOUR:-none}}" >> {seen}; '


def test_pending_tasks_get_the_new_environment_and_running_ones_keep_the_old(
    client: Cluster, three: LocalCluster, tmp_path: Path, gate: Gate
) -> None:
    seen = tmp_path / "seen"
    job = client.submit("sh", "-c", SAYS.format(seen=seen) + gate.wait, count=4, parallel=2)
    until(lambda: three.count(job.id, "running") == 2, "two run")
    ran = three.rota("job", "update", job.id, "--env", "COLOUR=red", "--priority", "70")
    gate.open()

    assert ran.code == 0, ran.err
    assert "version 2" in ran.err
    assert "immediately               priority" in ran.err
    assert "from the next attempt on  env" in ran.err
    assert job.wait(60).state == "succeeded"
    assert sorted(seen.read_text().splitlines()) == ["0 none", "1 none", "2 red", "3 red"]
    assert (job.status.version, job.status.priority) == (2, 70)


def times_away(job: Job, count: int) -> list[tuple[int, int]]:
    """For each task, the time from the end of its first attempt to the start of its second."""
    tries = [job.task(index).attempts for index in range(count)]
    return sorted((old.ended_at_ms or 0, new.started_at_ms or 0) for old, new in tries)


def test_running_tasks_are_replaced_one_at_a_time(
    client: Cluster, three: LocalCluster, tmp_path: Path, gate: Gate
) -> None:
    """At most one of the four is down at a time, however long a stop and a start take."""
    seen = tmp_path / "seen"
    job = client.submit("sh", "-c", SAYS.format(seen=seen) + gate.wait, count=4)
    until(lambda: three.count(job.id, "running") == 4, "all run")
    until(lambda: seen.exists() and len(seen.read_text().splitlines()) == 4, "all have said so")
    ran = three.rota("job", "update", job.id, "--env", "COLOUR=red", "--replace", "--max-parallel", "1")
    until(lambda: job.refresh().versions == {"2": 4}, "all are replaced")
    shown = three.rota("show", job.id).out
    gate.open()

    assert ran.code == 0, ran.err
    away = times_away(job, 4)
    assert all(0 < left <= back for left, back in away)
    assert all(back <= left for (_, back), (left, _) in pairwise(away))
    assert "version    2: 4 run version 2" in shown
    assert job.wait(60).state == "succeeded"
    assert sorted(seen.read_text().splitlines()) == [
        f"{at} {how}" for at in range(4) for how in ("none", "red")
    ]
    assert [attempt.state for attempt in job.task(3).attempts] == ["stopped", "succeeded"]


def test_a_stale_version_changes_nothing(client: Cluster, three: LocalCluster) -> None:
    job = client.submit("sleep", "600")
    first = job.update({"priority": 60}, if_version=1)
    repeated = job.update({"priority": 60}, if_version=1)
    stale = three.rota("job", "update", job.id, "--priority", "90", "--if-version", "1")
    answer = three.call("PATCH", f"/v1/jobs/{job.id}", {"priority": 90}, **{"If-Match": '"1"'})
    after = job.refresh()
    job.kill()
    job.wait(60)

    assert (first.version, repeated.version, after.version, after.priority) == (2, 2, 2, 60)
    assert stale.code == 1
    assert f"job {job.id} is at version 2, not 1" in stale.err
    assert answer.status == 409
    with pytest.raises(Conflict):
        job.update({"priority": 10})


def test_a_new_time_limit_applies_to_running_tasks(client: Cluster) -> None:
    job = client.submit("sleep", "600", timeout="1h")
    until(lambda: job.refresh().counts["running"] == 1, "it runs")
    job.update({"timeout": "0.1s"})

    assert job.wait(60).state == "timed_out"


def test_a_longer_time_limit_applies_to_running_tasks(client: Cluster, gate: Gate, witness: Witness) -> None:
    job = client.submit(*witness.script(gate.wait), timeout="20s")
    until(lambda: job.refresh().counts["running"] == 1, "it runs")
    job.update({"timeout": None})
    short = client.run("sleep", "600", timeout="20s")  # begun later, so the first one's time is over, too
    gate.open()

    assert short.state == "timed_out"
    assert job.wait(60).state == "succeeded"


def memory_limits(cluster: LocalCluster) -> set[str]:
    """The limits of its cgroups, as read from the kernel."""
    lists = [cluster.node_directory(number) / "groups" for number in cluster.numbers]
    parents = [Path(line) for file in lists if file.exists() for line in file.read_text().splitlines()]
    names = ("*/memory.limit_in_bytes", "*/memory.max")
    return {file.read_text() for parent in parents for name in names for file in parent.glob(name)}


@pytest.mark.parametrize("before", [{}, {"limits": {"memory": "1g"}}], ids=["its first", "another"])
def test_a_new_memory_limit_applies_to_running_tasks(
    client: Cluster, three: LocalCluster, before: dict[str, object], gate: Gate, witness: Witness
) -> None:
    eats = f"{gate.wait}; exec {sys.executable} -c 'import time; data = bytearray(512 << 20); time.sleep(60)'"
    job = client.submit(*witness.script(eats), **before)  # type: ignore[arg-type]
    until(lambda: job.refresh().counts["running"] == 1, "it runs")
    job.update({"limits": {"memory": "64m"}})
    # A kernel may not take a limit that is below what is in use.
    until(lambda: f"{1 << 30}\n" not in memory_limits(three), "the node has heard of it")
    gate.open()
    ended = job.wait(60)

    assert ended.state == "failed"
    assert "out of memory: limit 64 MiB" in (ended.reason or "")
    assert set(witness.starts().values()) == {1}


def test_tasks_are_added_to_a_running_array(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    """Within its last block and beyond, across a restart of the server."""
    job = client.submit(*witness.script(gate.wait), count=3, parallel=3)
    until(lambda: three.count(job.id, "running") == 3, "all run")
    job.update({"count": 300, "parallel": 12})
    three.kill_server()
    three.start_server()
    gate.open()

    assert job.wait(120).state == "succeeded"
    assert witness.starts() == dict.fromkeys(range(300), 1)


def test_a_service_is_scaled_down_and_up_again(
    client: Cluster, three: LocalCluster, witness: Witness
) -> None:
    """Those with the highest numbers are stopped, and run again; the server restarts in between."""
    job = client.submit(*witness.script("exec sleep 600"), count=3, kind="service")
    until(lambda: len(witness.seen()) == 3, "all run")
    job.update({"count": 1})
    until(lambda: len(three.work()) == 1, "two are stopped")
    until(lambda: job.refresh().counts["canceled"] == 2, "their end is known")
    three.kill_server()
    three.start_server()
    fewer, reasons = job.refresh(), [task.reason for task in job.tasks()]
    job.update({"count": 4})
    until(lambda: len(witness.seen()) == 6, "the same and a new one run")
    until(lambda: job.refresh().counts["running"] == 4, "it is known")
    job.cancel()

    assert (fewer.count, fewer.state) == (1, "active")
    assert reasons == [None, *["its job has 1 task now"] * 2]
    assert witness.starts() == {0: 1, 1: 2, 2: 2, 3: 1}
    assert job.wait(30).state == "canceled"


def test_placement_changes_only_while_no_task_runs(
    client: Cluster, three: LocalCluster, witness: Witness, gate: Gate
) -> None:
    job = client.submit(*witness.script(gate.wait), count=2, cpu=1)
    until(lambda: three.count(job.id, "running") == 2, "both run")
    with pytest.raises(Conflict) as refused:
        job.update({"cpu": 3})
    job.pause(stop=True)
    until(lambda: three.count(job.id, "pending") == 2, "both are stopped")
    job.update({"cpu": 3})
    job.resume()
    until(lambda: three.count(job.id, "running") == 2, "both run again")
    reserved = sum(three.node(number)["reserved"]["cpu"] for number in (1, 2, 3))
    gate.open()

    assert refused.value.field == "cpu"
    assert f"rota pause {job.id} --stop" in (refused.value.hint or "")
    assert reserved == 6
    assert job.wait(60).state == "succeeded"


def test_a_node_that_was_disconnected_gets_the_update(
    client: Cluster, three: LocalCluster, tmp_path: Path
) -> None:
    """Its agent is dead when the job is changed and signalled; the keeper and the work are not."""
    signals = tmp_path / "heard"
    script = f'trap "echo heard >> {signals}" USR1; echo ready; while :; do sleep 0.05; done'
    job = client.submit("sh", "-c", script, on=three.node(1)["name"], timeout="1h")
    until(lambda: "ready" in job.logs(), "it runs")
    until(lambda: job.refresh().counts["running"] == 1, "the server knows it")
    three.kill_agent(1)
    job.kill("USR1")
    three.start_agent(1)
    until(signals.exists, "the signal is heard")
    three.kill_agent(1)
    job.update({"timeout": "0.1s"})
    three.start_agent(1)

    assert job.wait(60).state == "timed_out"
    assert signals.read_text() == "heard\n"
    assert len(job.task(0).attempts) == 1


def test_a_field_that_cannot_be_updated_is_refused(client: Cluster, three: LocalCluster) -> None:
    job = client.submit("sleep", "600")
    named = three.call("PATCH", f"/v1/jobs/{job.id}", {"name": "other"})
    unknown = three.call("PATCH", f"/v1/jobs/{job.id}", {"colour": "red"})
    bad = three.call("PATCH", f"/v1/jobs/{job.id}", {"priority": 900})
    etag = three.call("PATCH", f"/v1/jobs/{job.id}", {"priority": 10}, **{"If-Match": "yesterday"})
    empty = three.rota("job", "update", job.id)
    job.kill()

    assert [refused.body["field"] for refused in (named, unknown, bad, etag)] == [
        "name",
        "colour",
        "priority",
        "If-Match",
    ]
    assert empty.code == 2
    assert "nothing to change" in empty.err
