"""Parts of the output of real tasks: by time, lines, bytes and attempt; and in the order it was written."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.keeper.output.time_index import SUFFIX, parse_marks
from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from tests.system.witness_file import Gate

KIB = 1 << 10


class Talker:
    """Work that says a line each time it is told to, and a test that knows when its node has seen it."""

    def __init__(self, cluster: LocalCluster, directory: Path, count: int = 1) -> None:
        self._cluster = cluster
        self._directory = directory
        script = (
            f"n=1; while :; do f={directory}/$ROTA_INDEX.$n; until [ -e $f ]; do sleep 0.02; done; . $f;"
            " n=$((n+1)); done"
        )
        self._turns = [0] * count
        self.job = cluster.submit("sh", "-c", script, count=count, cpu=0.1)
        until(lambda: cluster.count(self.job, "running") == count, "all run")

    def say(self, command: str, index: int = 0) -> None:
        """Until it is on record when that came, to its last byte."""
        done = self._directory / "done"
        self._turn(f"{command}; : > {done}", index)
        until(done.exists, f"it has said {command}")
        done.unlink()
        until(self._is_marked, "its node has seen all of it")

    def end(self, command: str = "exit 0") -> None:
        for index in range(len(self._turns)):
            self._turn(command, index)
        until(lambda: not self._cluster.count(self.job, "running"), "the end")

    def _turn(self, command: str, index: int) -> None:
        self._turns[index] += 1
        partial = self._directory / "partial"
        partial.write_text(f"{command}\n")
        partial.rename(self._directory / f"{index}.{self._turns[index]}")

    def _is_marked(self) -> bool:
        logs = self._cluster.node_directory(1) / "logs" / self.job
        files = [path for ending in ("out", "err") for path in logs.glob(f"*.{ending}")]
        return all(_marked_bytes(path) == path.stat().st_size for path in files)


def _marked_bytes(path: Path) -> int:
    """How much of a stream's file has a time."""
    marks = path.with_name(path.name + SUFFIX.decode())
    positions = parse_marks(marks.read_bytes()).positions if marks.exists() else []
    return positions[-1] if positions else 0  # it may have been made just now


@pytest.fixture
def talker(shared: LocalCluster, tmp_path: Path) -> Iterator[Talker]:
    talker = Talker(shared, tmp_path)
    yield talker
    shared.call("POST", f"/v1/jobs/{talker.job}/cancel")
    until(lambda: not shared.count(talker.job, "running"), "the end")


def logs(cluster: LocalCluster, *arguments: str) -> str:
    ran = cluster.rota("logs", *arguments)
    assert ran.code == 0, ran.err
    return ran.out


def records(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in logs(cluster, *arguments, "-o", "jsonl").splitlines()]


def moment() -> str:
    """Now, as --since takes it; what is said next comes later."""
    now_ms = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > now_ms, "a millisecond")
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_ms // 1000))}.{now_ms % 1000:03}Z"


def test_log_parts_since_and_until_a_time(shared: LocalCluster, talker: Talker) -> None:
    talker.say("echo one")
    first = moment()
    talker.say("echo two")
    second = moment()
    talker.say("echo three")

    def shown() -> list[str]:
        return [
            logs(shared, talker.job, "--since", first),
            logs(shared, talker.job, "--until", first),
            logs(shared, talker.job, "--since", first, "--until", second),
            logs(shared, talker.job, "--since", moment()),
            logs(shared, talker.job, "--since", "1h"),
        ]

    living = shown()
    talker.end()

    assert living == ["two\nthree\n", "one\n", "two\n", "", "one\ntwo\nthree\n"]
    assert shown() == living


def test_both_streams_are_merged_in_the_order_written(shared: LocalCluster, talker: Talker) -> None:
    talker.say("echo one")
    talker.say("echo two >&2")
    talker.say("echo three")
    talker.say("echo four >&2")
    talker.end("echo five; exit 0")
    found = records(shared, talker.job)
    with_times = logs(shared, talker.job, "--stdout", "--timestamps").splitlines()

    assert "".join(record["text"] for record in found) == "one\ntwo\nthree\nfour\nfive\n"
    times = [record["at_ms"] for record in found]
    assert times == sorted(times)
    assert 0 < times[0] <= time.time_ns() // 1_000_000
    assert [line.split(" ")[1] for line in with_times] == ["one", "three", "five"]
    assert logs(shared, talker.job, "--stdout", "--since", with_times[1].split(" ")[0]) == "five\n"


def test_output_of_array_tasks_is_merged_in_the_order_written(shared: LocalCluster, tmp_path: Path) -> None:
    talker = Talker(shared, tmp_path, count=3)
    for number, index in enumerate((2, 0, 1, 0, 2)):
        talker.say(f"echo {number}", index)
    talker.end()

    assert logs(shared, talker.job) == "[2] 0\n[0] 1\n[1] 2\n[0] 3\n[2] 4\n"
    assert logs(shared, talker.job, "--tail", "1") == "[1] 2\n[0] 3\n[2] 4\n"


def test_the_last_lines_are_counted_over_both_streams(shared: LocalCluster, talker: Talker) -> None:
    talker.say("seq 100000")
    talker.say("echo warning >&2")
    talker.say("printf 'a\\nb'")

    def shown(lines: int, *more: str) -> str:
        found = records(shared, talker.job, "--tail", str(lines), *more)
        assert not any("missing" in record for record in found)
        return "".join(record["text"] for record in found)

    living = [shown(lines) for lines in range(5)]
    alone = [shown(2, "--stdout"), shown(2, "--stderr"), shown(1, "--until", moment())]
    talker.end()

    assert living == ["", "b", "a\nb", "warning\na\nb", "100000\nwarning\na\nb"]
    assert alone == ["a\nb", "warning\n", "b"]
    assert [shown(lines) for lines in range(5)] == living


def test_the_last_lines_of_capped_output_are_found_and_the_gap_is_reported(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1, settings={"ROTA_LOG_BYTES": "64k"}) as cluster:
        gate = Gate(tmp_path / "gate")
        script = f"head -c 3000000 /dev/zero | tr '\\0' x; printf 'y\\nz\\n'; {gate.wait}"
        job = cluster.submit("sh", "-c", script)
        file = cluster.node_directory(1) / "logs" / job / "0.out"
        until(lambda: file.exists() and file.stat().st_size == 3_000_004, "all is written")
        until(lambda: file.stat().st_blocks * 512 < 200 * KIB, "its head is gone")
        last = records(cluster, job, "--tail", "1")
        more = records(cluster, job, "--tail", "2")
        gate.open()
        until(lambda: cluster.count(job, "succeeded") == 1, "the end")

    assert [(record["offset"], record["text"]) for record in last] == [(3_000_002, "z\n")]
    assert sum(record.get("missing", 0) + len(record.get("text", "")) for record in more) == 3_000_004
    assert more[0]["missing"] > 2_000_000


def test_reading_continues_from_a_byte_or_a_cursor(shared: LocalCluster, talker: Talker) -> None:
    talker.say("printf 0123456789")
    talker.say("printf abc >&2")
    some = shared.rota("logs", talker.job, "--stdout", "--from", "4")
    vague = shared.rota("logs", talker.job, "--from", "4")
    follower = shared.start_rota("logs", "-f", "--tail", "1", talker.job)
    assert follower.stdout is not None
    before = follower.stdout.read(10)
    talker.say("printf more")
    talker.end()
    rest = follower.stdout.read()
    path = f"/v1/jobs/{talker.job}/logs"
    resumed = records(shared, talker.job)  # all of it, by its places
    raw = shared.rota("logs", talker.job, "--stdout", "--from", "13")

    assert some.out == "456789"
    assert (vague.code, "add --stdout or --stderr" in vague.err) == (2, True)
    assert (before, rest) == (b"0123456789", b"more")
    assert sum(len(record["text"]) for record in resumed) == 17
    assert raw.out == "e"
    assert (
        shared.call("GET", f"{path}?format=chunks&from=0.1.stdout:13&from=0.1.stderr:3").body["offset"] == 13
    )


@pytest.mark.parametrize(
    ("query", "field", "accepted"),
    [
        ("since=yesterday", "since", "10m"),
        ("since=2026-12-01T08:00:00", "since", "zone"),
        ("until=2026-13-01T08:00:00Z", "until", "10m"),
        ("until=1m&follow=true", "until", "follow"),
        ("since=1m&until=2m", "until", "later"),
        ("tail=-1", "tail", "whole number"),
        ("tail=many", "tail", "whole number"),
        ("attempt=some", "attempt", "all"),
        ("from=7", "from", "INDEX.ATTEMPT.STREAM:OFFSET"),
        ("offset=4&format=chunks", "offset", "stream"),
    ],
)
def test_an_invalid_log_range_is_refused_by_name(
    shared: LocalCluster, query: str, field: str, accepted: str
) -> None:
    job = shared.submit("true")
    answer = shared.call("GET", f"/v1/jobs/{job}/logs?{query}")

    assert (answer.status, answer.body["field"]) == (400, field)
    assert accepted in answer.body["hint"]


def test_every_attempt_is_shown_also_one_whose_node_is_lost(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=2, settings={"ROTA_LOST_SECONDS": "12"}) as cluster:
        gate = Gate(tmp_path / "gate")
        job = cluster.submit("sh", "-c", f"echo try $ROTA_ATTEMPT on $ROTA_NODE; {gate.wait}; echo done")
        until(lambda: cluster.count(job, "running") == 1, "it runs")
        first = cluster.call("GET", f"/v1/jobs/{job}/tasks/0").body["node"]
        until((cluster.directory / f"server/tails/{job}.live").exists, "the server has its tail")
        cluster.kill_node(int(first.removeprefix("node-")))
        until(lambda: cluster.call("GET", f"/v1/jobs/{job}/tasks/0").body["attempt"] == 2, "another attempt")
        gate.open()
        until(lambda: cluster.count(job, "succeeded") == 1, "the end")
        newest = logs(cluster, job)
        each = cluster.rota("logs", job, "--all-attempts")
        old = cluster.rota("logs", job, "--attempt", "1")
        unknown = cluster.rota("logs", job, "--attempt", "7")
        followed = cluster.rota("logs", "-f", job, "--all-attempts", "--tail", "1")

    second = "node-1" if first == "node-2" else "node-2"
    assert newest == f"try 2 on {second}\ndone\n"
    assert each.out == f"[#1] try 1 on {first}\n[#2] try 2 on {second}\n[#2] done\n"
    assert "keeps the last 16 KiB" in each.err
    assert old.out == f"try 1 on {first}\n"
    assert (unknown.code, "it has: 1, 2" in unknown.err) == (4, True)
    assert followed.out == f"[#1] try 1 on {first}\n[#2] done\n"
