"""Long runs of a node: many short tasks, much output, and agents and keepers that are killed."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rota.testing import processes
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.faults.conftest import FIGURES
from tests.faults.sizes import FaultSize, size
from tests.faults.tally import Tally
from tests.faults.test_repeated_faults import finished, left_behind
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(1700)]
MIB = 1 << 20
KILL_EVERY_SECONDS = 3.0
# 200 MiB per second without a newline, until the flag exists.
WRITER = """
import os, sys, time
began, written = time.monotonic(), 0
while not os.path.exists(sys.argv[1]):
    written += os.write(1, b"." * (1 << 20))
    time.sleep(max(0.0, began + written / (200 << 20) - time.monotonic()))
os.write(2, b"%d" % written)
"""


GRACE_SECONDS = 1
DETACH = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
read_fd, write_fd = os.pipe()
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write_fd, b"!")
            while True:
                time.sleep(0.01 if number % 50 == 0 else 3600)
        os._exit(0)
    os.wait()
for _ in range(int(sys.argv[1])):
    os.read(read_fd, 1)
print("ready", flush=True)
time.sleep(3600)
"""
RecordProperty = Callable[[str, object], None]


@dataclass(frozen=True)
class Footprint:
    """Memory and descriptors of a process."""

    resident_bytes: int
    descriptors: int

    @staticmethod
    def of(pid: int) -> "Footprint":
        return Footprint(processes.resident_bytes(pid), len(list(Path(f"/proc/{pid}/fd").iterdir())))


def test_ten_thousands_of_short_tasks_leave_nothing_behind(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    """Job after job, whose tasks end with four different exit codes; each is deleted after it was checked."""
    chosen = size(few=FaultSize(faults=4, tasks=500), many=FaultSize(faults=10, tasks=10_000))
    with LocalCluster(tmp_path, nodes=1, cpu=4) as cluster:
        rounds: list[list[Footprint]] = []
        for _ in range(chosen.faults):
            job = cluster.submit("sh", "-c", "exit $((ROTA_INDEX % 4))", count=chosen.tasks)
            until(lambda job=job: finished(cluster, job), "all tasks end", 60 + chosen.tasks / 50)  # type: ignore[misc]
            assert exit_codes(cluster, job) == [index % 4 for index in range(chosen.tasks)]
            assert left_behind(cluster) == []
            assert cluster.call("DELETE", f"/v1/jobs/{job}").status == 204
            rounds.append([Footprint.of(pid) for pid in cluster.processes()])
        record_property(FIGURES, table(rounds, chosen.tasks))
        _, warm, *_, last = rounds
        until(lambda: leaking_processes(cluster, warm) == [], "descriptors are released")

    for before, after in zip(warm, last, strict=True):
        assert after.resident_bytes < before.resident_bytes * 1.1 + 8 * MIB


def leaking_processes(cluster: LocalCluster, before: list[Footprint]) -> list[int]:
    """Processes with more descriptors than before; files of a deleted job are closed a little later."""
    now = [(pid, Footprint.of(pid)) for pid in cluster.processes()]
    return [
        pid for (pid, found), old in zip(now, before, strict=True) if found.descriptors > old.descriptors + 8
    ]


def test_an_agent_killed_every_three_seconds_loses_and_duplicates_nothing(
    tmp_path: Path, tally: Tally, record_property: RecordProperty
) -> None:
    chosen = size(few=FaultSize(faults=2, tasks=40), many=FaultSize(faults=20, tasks=200))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate", chosen.tasks / 200)
    with LocalCluster(tmp_path, nodes=1, cpu=chosen.tasks) as cluster:
        # A quarter of them end meanwhile, some while no agent is attached to the keeper.
        script = f"[ $((ROTA_INDEX % 4)) != 0 ] || exec sleep $((ROTA_INDEX / 4)); {gate.wait}"
        job = cluster.submit(*witness.script(script), count=chosen.tasks)
        until(lambda: len(witness.seen()) == chosen.tasks, "all tasks run", 60)
        (keeper,) = cluster.keepers()
        for _ in range(chosen.faults):
            next_at = time.monotonic() + KILL_EVERY_SECONDS
            cluster.kill_agent(1)
            cluster.start_agent(1)
            until(lambda at=next_at: time.monotonic() > at, "three seconds")  # type: ignore[misc]
            cluster.wait_for_nodes()  # on a busy machine it takes longer; a node that never connects is lost
        gate.open()
        until(lambda: finished(cluster, job), "all tasks end", 120)
        tally.record_starts(witness, chosen.tasks, chosen.faults)

        starts = witness.starts()
        summary = f"{starts.total()} starts, {cluster.count(job, 'succeeded')} succeeded"
        record_property(FIGURES, f"{chosen.tasks} tasks, {chosen.faults} agents killed: {summary}")
        assert cluster.count(job, "succeeded") == chosen.tasks
        assert starts == dict.fromkeys(range(chosen.tasks), 1)
        assert cluster.keepers() == [keeper]
        assert left_behind(cluster) == []


def test_a_killed_keeper_leaves_no_process_and_its_tasks_run_again(
    tmp_path: Path, tally: Tally, record_property: RecordProperty
) -> None:
    """Also processes in a session of their own that ignore signals."""
    chosen = size(few=FaultSize(faults=1, tasks=20), many=FaultSize(faults=5, tasks=200))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate", chosen.tasks / 200)
    with LocalCluster(tmp_path, nodes=1, cpu=chosen.tasks) as cluster:
        script = f"setsid -f sh -c 'trap \"\" TERM; exec sleep 3600' >/dev/null 2>&1; {gate.wait}"
        job = cluster.submit(*witness.script(script), count=chosen.tasks)
        took_seconds = []
        for number in range(1, chosen.faults + 1):
            until(lambda n=number: len(witness.seen()) == n * chosen.tasks, "all tasks run", 120)  # type: ignore[misc]
            before = cluster.work()
            (keeper,) = cluster.keepers()
            began = time.monotonic()
            processes.kill_all(lambda pid=keeper: [pid] if pid in cluster.keepers() else [])  # type: ignore[misc]
            until(lambda old=set(before): not old & set(cluster.work()), "all processes are dead", 60)  # type: ignore[misc]
            took_seconds.append(time.monotonic() - began)
        until(lambda: len(witness.seen()) == (chosen.faults + 1) * chosen.tasks, "all tasks run again", 120)
        gate.open()
        until(lambda: finished(cluster, job), "all tasks end", 120)
        tally.record_starts(witness, chosen.tasks, chosen.faults, allowed=chosen.faults + 1)

        summary = f"all dead after {', '.join(f'{seconds:.1f}' for seconds in took_seconds)} s"
        record_property(FIGURES, f"{2 * chosen.tasks} processes and more, {chosen.faults} keepers: {summary}")
        assert cluster.count(job, "succeeded") == chosen.tasks
        assert left_behind(cluster) == []


def test_detached_processes_that_ignore_sigterm_die_after_the_grace_period(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    """Each one forked twice, has a session of its own and ignores SIGTERM; with a cgroup and without.

    Some wake up all the time: a process that may fork at any moment must not be missed.
    """
    chosen = size(few=FaultSize(faults=0, tasks=100), many=FaultSize(faults=0, tasks=1000))
    took_seconds = []
    with LocalCluster(tmp_path, nodes=1) as cluster:
        for limits in ({}, {"pids": chosen.tasks + 500}):
            job = cluster.submit(
                "python3", "-c", DETACH, str(chosen.tasks), grace=GRACE_SECONDS, limits=limits
            )
            until(lambda job=job: "ready" in cluster.rota("logs", job).out, "all processes are started", 120)  # type: ignore[misc]
            until(lambda: len(cluster.work()) == chosen.tasks + 1, "all processes are visible")
            assert cluster.call("POST", f"/v1/jobs/{job}/cancel").status == 202
            began = time.monotonic()
            until(lambda: not cluster.work(), "all processes are dead", 60)
            took_seconds.append(time.monotonic() - began - GRACE_SECONDS)
            until(lambda job=job: finished(cluster, job), "the job has ended")  # type: ignore[misc]
            assert cluster.count(job, "canceled") == 1

    by_marker, by_cgroup = took_seconds
    summary = f"dead {by_marker:.1f} s after their grace by their marker, {by_cgroup:.1f} s by their cgroup"
    record_property(FIGURES, f"{chosen.tasks} processes: {summary}")


def test_a_task_with_much_output_stays_within_its_cap_and_its_node_stays_ready(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    chosen = size(few=FaultSize(faults=0, tasks=1000), many=FaultSize(faults=0, tasks=12_000))  # mebibytes
    with LocalCluster(tmp_path, nodes=1, settings={"ROTA_LOG_BYTES": "8m"}) as cluster:
        flag = tmp_path / "flag"
        job = cluster.submit("python3", "-c", WRITER, str(flag))
        file = cluster.node_directory(1) / "logs" / job / "0.out"
        most_bytes = most_silent_ms = 0
        until(file.exists, "the first byte")
        while file.stat().st_size < chosen.tasks * MIB:
            most_bytes = max(most_bytes, file.stat().st_blocks * 512)
            most_silent_ms = max(most_silent_ms, cluster.node(1)["heard_ms_ago"] or 0)
        flag.touch()
        until(lambda: cluster.count(job, "succeeded") == 1, "the end")
        written = int(records(cluster, job, "--stderr")[0]["text"])
        found = records(cluster, job, "--stdout")

    received = sum(len(record.get("text", "")) for record in found)
    disk = f"at most {most_bytes / MIB:.0f} MiB on disk"
    summary = f"{disk}, {received} bytes received, node silent for {most_silent_ms} ms at most"
    record_property(FIGURES, f"{written / MIB:.0f} MiB written: {summary}")
    assert most_bytes < 9 * MIB + 200 * MIB  # one second of output, since the machine may be busy
    assert most_silent_ms < 15_000
    assert received >= 8 * MIB
    assert received + sum(record.get("missing", 0) for record in found) == written


def exit_codes(cluster: LocalCluster, job: str) -> list[int]:
    tasks = cluster.call("GET", f"/v1/jobs/{job}/tasks?limit=10000").body["tasks"]
    return [task["exit_code"] for task in tasks]


def records(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    ran = cluster.rota("logs", *arguments, "-o", "jsonl")
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def table(rounds: list[list[Footprint]], tasks: int) -> str:
    """Server, agent and keeper after each round."""
    lines = ["", f"{'tasks':>8}" + "".join(f"{name:>20}" for name in ("server", "agent", "keeper"))]
    for number, row in enumerate(rounds, 1):
        cells = [f"{footprint.resident_bytes / MIB:.1f} MiB, {footprint.descriptors} fd" for footprint in row]
        lines.append(f"{number * tasks:>8}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)
