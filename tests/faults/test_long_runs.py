"""What a node must stand for long: swarms of short tasks, a loud writer, an agent or a keeper killed."""

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
from tests.faults.sizes import Size, size
from tests.faults.tally import Tally
from tests.faults.test_repeated_faults import finished, left_behind
from tests.system.witness_file import Gate, Witness

pytestmark = [pytest.mark.system, pytest.mark.timeout(1700)]
MIB = 1 << 20
KILL_EVERY_SECONDS = 3.0
# 200 MiB a second without a newline, until the flag is there.
LOUD = """
import os, sys, time
began, written = time.monotonic(), 0
while not os.path.exists(sys.argv[1]):
    written += os.write(1, b"." * (1 << 20))
    time.sleep(max(0.0, began + written / (200 << 20) - time.monotonic()))
os.write(2, b"%d" % written)
"""


GRACE_SECONDS = 1
HIDES = """
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
Tell = Callable[[str, object], None]


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    resident_bytes: int
    descriptors: int

    @staticmethod
    def of(pid: int) -> "Footprint":
        return Footprint(processes.resident_bytes(pid), len(list(Path(f"/proc/{pid}/fd").iterdir())))


def test_short_tasks_by_the_ten_thousand_leave_nothing_behind(tmp_path: Path, record_property: Tell) -> None:
    """Each of them one of four exit codes; job after job, each deleted when it was looked at."""
    wanted = size(few=Size(faults=4, tasks=500), many=Size(faults=10, tasks=10_000))
    with LocalCluster(tmp_path, nodes=1, cpu=4) as cluster:
        rounds: list[list[Footprint]] = []
        for _ in range(wanted.faults):
            job = cluster.submit("sh", "-c", "exit $((ROTA_INDEX % 4))", count=wanted.tasks)
            until(lambda job=job: finished(cluster, job), "all tasks end", 60 + wanted.tasks / 50)  # type: ignore[misc]
            assert exit_codes(cluster, job) == [index % 4 for index in range(wanted.tasks)]
            assert left_behind(cluster) == []
            assert cluster.call("DELETE", f"/v1/jobs/{job}").status == 204
            rounds.append([Footprint.of(pid) for pid in cluster.processes()])
        record_property(FIGURES, table(rounds, wanted.tasks))
        _, warm, *_, last = rounds
        until(lambda: not_given_back(cluster, warm) == [], "descriptors come back")

    for before, after in zip(warm, last, strict=True):
        assert after.resident_bytes < before.resident_bytes * 1.1 + 8 * MIB


def not_given_back(cluster: LocalCluster, before: list[Footprint]) -> list[int]:
    """Processes that hold more descriptors than they did; a deleted job's files are closed a little later."""
    now = [(pid, Footprint.of(pid)) for pid in cluster.processes()]
    return [
        pid for (pid, found), one in zip(now, before, strict=True) if found.descriptors > one.descriptors + 8
    ]


def test_an_agent_killed_every_three_seconds_loses_and_doubles_nothing(
    tmp_path: Path, tally: Tally, record_property: Tell
) -> None:
    wanted = size(few=Size(faults=2, tasks=40), many=Size(faults=20, tasks=200))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate", wanted.tasks / 200)
    with LocalCluster(tmp_path, nodes=1, cpu=wanted.tasks) as cluster:
        # A part of them ends meanwhile, some while there is no agent to tell it to.
        script = f"[ $((ROTA_INDEX % 4)) != 0 ] || exec sleep $((ROTA_INDEX / 4)); {gate.wait}"
        job = cluster.submit(*witness.script(script), count=wanted.tasks)
        until(lambda: len(witness.seen()) == wanted.tasks, "all tasks run", 60)
        (keeper,) = cluster.keepers()
        for _ in range(wanted.faults):
            next_at = time.monotonic() + KILL_EVERY_SECONDS
            cluster.kill_agent(1)
            cluster.start_agent(1)
            until(lambda at=next_at: time.monotonic() > at, "three seconds")  # type: ignore[misc]
            cluster.wait_for_nodes()  # a busy machine may take longer; a node that is never heard is lost
        gate.open()
        until(lambda: finished(cluster, job), "all tasks end", 120)
        tally.note_starts(witness, wanted.tasks, wanted.faults)

        starts = witness.starts()
        told = f"{starts.total()} starts, {cluster.count(job, 'succeeded')} succeeded"
        record_property(FIGURES, f"{wanted.tasks} tasks, {wanted.faults} agents killed: {told}")
        assert cluster.count(job, "succeeded") == wanted.tasks
        assert starts == dict.fromkeys(range(wanted.tasks), 1)
        assert cluster.keepers() == [keeper]
        assert left_behind(cluster) == []


def test_a_killed_keeper_leaves_nothing_behind_and_its_work_is_run_again(
    tmp_path: Path, tally: Tally, record_property: Tell
) -> None:
    """Also what went into a session of its own and lets no signal end it."""
    wanted = size(few=Size(faults=1, tasks=20), many=Size(faults=5, tasks=200))
    witness, gate = Witness(tmp_path / "witness"), Gate(tmp_path / "gate", wanted.tasks / 200)
    with LocalCluster(tmp_path, nodes=1, cpu=wanted.tasks) as cluster:
        script = f"setsid -f sh -c 'trap \"\" TERM; exec sleep 3600' >/dev/null 2>&1; {gate.wait}"
        job = cluster.submit(*witness.script(script), count=wanted.tasks)
        took_seconds = []
        for number in range(1, wanted.faults + 1):
            until(lambda n=number: len(witness.seen()) == n * wanted.tasks, "all tasks run", 120)  # type: ignore[misc]
            before = cluster.work()
            (keeper,) = cluster.keepers()
            began = time.monotonic()
            processes.kill_all(lambda pid=keeper: [pid] if pid in cluster.keepers() else [])  # type: ignore[misc]
            until(lambda old=set(before): not old & set(cluster.work()), "all of it is dead", 60)  # type: ignore[misc]
            took_seconds.append(time.monotonic() - began)
        until(lambda: len(witness.seen()) == (wanted.faults + 1) * wanted.tasks, "it runs again", 120)
        gate.open()
        until(lambda: finished(cluster, job), "all tasks end", 120)
        tally.note_starts(witness, wanted.tasks, wanted.faults, allowed=wanted.faults + 1)

        told = f"all dead after {', '.join(f'{one:.1f}' for one in took_seconds)} s"
        record_property(FIGURES, f"{2 * wanted.tasks} processes and more, {wanted.faults} keepers: {told}")
        assert cluster.count(job, "succeeded") == wanted.tasks
        assert left_behind(cluster) == []


def test_a_crowd_that_hides_and_hears_nothing_dies_after_its_grace(
    tmp_path: Path, record_property: Tell
) -> None:
    """Each of them forked twice, in a session of its own, and deaf to SIGTERM; with a group and without.

    Some are never at rest: of those who may fork any time none must be missed.
    """
    wanted = size(few=Size(faults=0, tasks=100), many=Size(faults=0, tasks=1000))
    took_seconds = []
    with LocalCluster(tmp_path, nodes=1) as cluster:
        for limits in ({}, {"pids": wanted.tasks + 500}):
            job = cluster.submit(
                "python3", "-c", HIDES, str(wanted.tasks), grace=GRACE_SECONDS, limits=limits
            )
            until(lambda job=job: "ready" in cluster.rota("logs", job).out, "a crowd", 120)  # type: ignore[misc]
            until(lambda: len(cluster.work()) == wanted.tasks + 1, "all of it can be seen")
            assert cluster.call("POST", f"/v1/jobs/{job}/cancel").status == 202
            began = time.monotonic()
            until(lambda: not cluster.work(), "all of it is dead", 60)
            took_seconds.append(time.monotonic() - began - GRACE_SECONDS)
            until(lambda job=job: finished(cluster, job), "its end is known")  # type: ignore[misc]
            assert cluster.count(job, "canceled") == 1

    marks, group = took_seconds
    told = f"dead {marks:.1f} s after their grace by their marks, {group:.1f} s by their group"
    record_property(FIGURES, f"{wanted.tasks} processes: {told}")


def test_a_loud_writer_stays_within_its_cap_and_its_node_is_heard(
    tmp_path: Path, record_property: Tell
) -> None:
    wanted = size(few=Size(faults=0, tasks=1000), many=Size(faults=0, tasks=12_000))  # mebibytes
    with LocalCluster(tmp_path, nodes=1, settings={"ROTA_LOG_BYTES": "8m"}) as cluster:
        flag = tmp_path / "flag"
        job = cluster.submit("python3", "-c", LOUD, str(flag))
        file = cluster.node_directory(1) / "logs" / job / "0.out"
        most_bytes = most_silent_ms = 0
        until(file.exists, "the first byte")
        while file.stat().st_size < wanted.tasks * MIB:
            most_bytes = max(most_bytes, file.stat().st_blocks * 512)
            most_silent_ms = max(most_silent_ms, cluster.node(1)["heard_ms_ago"] or 0)
        flag.touch()
        until(lambda: cluster.count(job, "succeeded") == 1, "the end")
        written = int(records(cluster, job, "--stderr")[0]["text"])
        found = records(cluster, job, "--stdout")

    received = sum(len(one.get("text", "")) for one in found)
    disk = f"at most {most_bytes / MIB:.0f} MiB on disk"
    told = f"{disk}, {received} bytes received, node silent for {most_silent_ms} ms at most"
    record_property(FIGURES, f"{written / MIB:.0f} MiB written: {told}")
    assert most_bytes < 9 * MIB + 200 * MIB  # a second's worth: the machine may be busy
    assert most_silent_ms < 15_000
    assert received >= 8 * MIB
    assert received + sum(one.get("missing", 0) for one in found) == written


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
        cells = [f"{one.resident_bytes / MIB:.1f} MiB, {one.descriptors} fd" for one in row]
        lines.append(f"{number * tasks:>8}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)
