"""The requests that each command sends, and how it prints the answers."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.canned_server import (
    CannedServer,
    Reply,
    chunk,
    event,
    events,
    job,
    node,
    output,
    problem,
    statuses,
    task,
)

Rota = Callable[..., int]
Out = pytest.CaptureFixture[str]


def test_ls_is_a_table(server: CannedServer, rota: Rota, capsys: Out) -> None:
    jobs = [job(id="13", count=10, done=4), job("succeeded")]
    server.on("GET /v1/jobs", {"jobs": jobs, "next": None})

    assert rota("ls") == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["JOB", "NAME", "STATE", "DONE", "AGE", "STATUS"]
    assert lines[1][:4] == ["13", "python", "active", "4/10"]
    assert lines[2][:4] == ["12", "python", "succeeded", "1/1"]


def test_ls_aligns_its_columns_and_writes_no_colour_into_a_pipe(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    jobs = [job(id="1234", name="a"), job(id="1", name="a-long-name")]
    server.on("GET /v1/jobs", {"jobs": jobs, "next": None})

    rota("ls")

    out = capsys.readouterr().out
    starts = [line.index("active") for line in out.splitlines()[1:]]
    assert starts[0] == starts[1] == out.index("STATE")
    assert "\x1b" not in out


def test_ls_asks_for_the_newest_20_and_all_on_request(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/jobs", {"jobs": [job()], "next": None})

    rota("ls")
    rota("ls", "-a", "--state", "failed")

    asked = [seen.query for seen in server.asked("GET /v1/jobs")]
    chosen = [{name: one[name] for name in one if name != "fields"} for one in asked]
    assert chosen == [{"limit": "20"}, {"limit": "1000", "state": "failed"}]
    assert all("sentence" in one["fields"] for one in asked)


def test_an_empty_ls_says_what_to_do_on_stderr(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/jobs", {"jobs": [], "next": None})

    assert rota("ls") == 0

    assert capsys.readouterr() == ("", "no jobs; submit one: rota run -- echo hello\n")


@pytest.mark.parametrize(
    ("output_format", "expected"),
    [("id", "12\n"), ("jsonl", json.dumps(job(), ensure_ascii=False, separators=(",", ":")) + "\n")],
)
def test_output_for_programs(
    server: CannedServer, rota: Rota, capsys: Out, output_format: str, expected: str
) -> None:
    server.on("GET /v1/jobs", {"jobs": [job()], "next": None})

    rota("ls", "-o", output_format)

    assert capsys.readouterr().out == expected


def test_json_is_versioned_and_contains_the_answer_of_the_server(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    server.on("GET /v1/jobs", {"jobs": [job(mood="sunny")], "next": None})

    rota("ls", "-o", "json")

    assert json.loads(capsys.readouterr().out) == {"api": "v1", "jobs": [job(mood="sunny")]}


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        ("none", "no nodes; let one join: rota node token"),
        ("local", "no nodes; cluster default creates them on demand: rota cluster ls"),
    ],
)
def test_an_empty_node_list_says_how_nodes_join(
    server: CannedServer, rota: Rota, capsys: Out, provider: str, told: str
) -> None:
    server.on("GET /v1/nodes", {"nodes": [], "next": None})
    server.on("GET /v1/clusters", {"clusters": [{"name": "default", "provider": provider}], "next": None})

    assert rota("node", "ls") == 0

    assert told in capsys.readouterr().err


def test_the_output_format_may_come_from_the_environment(
    server: CannedServer, rota: Rota, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_OUTPUT", "id")
    server.on("GET /v1/nodes", {"nodes": [node()]})

    rota("node", "ls")

    assert capsys.readouterr().out == "n1\n"


def test_names_cannot_control_the_terminal(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/jobs", {"jobs": [job(name="\x1b[2Jevil")], "next": None})

    rota("ls")

    assert "\x1b" not in capsys.readouterr().out


def test_show_prints_the_job_its_spec_and_its_tasks(server: CannedServer, rota: Rota, capsys: Out) -> None:
    spec = {"command": ["python", "a b.py"], "cpu": 2.0, "memory": 4 * 1024**3, "where": ["region == eu"]}
    server.on("GET /v1/jobs/last", job("succeeded", spec=spec))
    server.on("GET /v1/jobs/12/tasks", {"tasks": [task()], "next": None})

    assert rota("show", "last") == 0

    out = capsys.readouterr().out
    for words in ("job 12 “python”", "python 'a b.py'", "2 cpu, 4 GiB memory", "region == eu", "laptop"):
        assert words in out


def test_show_prints_placement_rules_and_the_last_placement(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    spec = {
        "command": ["train"],
        "gpu": 0.5,
        "prefer": ["ssd exists weight 20"],
        "spread": ["region skew 1", "rack skew 2"],
        "gang": True,
        "evict_at_most": 1,
        "deadline": "2026-12-01T07:00:00Z",
    }
    placement = {
        "why": "3 tasks of job 12 on the best of 7 fitting nodes",
        "node": "node-1",
        "points": -1.25,
        "fitting": 7,
        "runner_up": "node-2",
        "runner_up_points": -8.0,
    }
    server.on("GET /v1/jobs/last", job("active", spec=spec, placement=placement))
    server.on("GET /v1/jobs/12/tasks", {"tasks": [task()], "next": None})

    assert rota("show", "last") == 0

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for wanted in (
        "requests   0.5 gpu",
        "prefer     ssd exists weight 20",
        "spread     region skew 1, rack skew 2",
        "gang       yes",
        "preempted  at most 1 of its tasks at a time",
        "deadline   2026-12-01T07:00:00Z",
        "placed     3 tasks of job 12 on the best of 7 fitting nodes",
        "node-1 with -1.2 points, before node-2 with -8.0",
    ):
        assert wanted in lines


def test_show_marks_evicted_attempts(server: CannedServer, rota: Rota, capsys: Out) -> None:
    attempts = [
        {"attempt": 1, "state": "stopped", "node": "a", "evicted": True},
        {"attempt": 2, "state": "stopping", "node": "b", "evicted": True},
    ]
    server.on("GET /v1/jobs/12", job("active"))
    server.on("GET /v1/jobs/12/tasks/0", task(0, "stopping", evicted=True, attempts=attempts))

    rota("show", "12.0")

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4] for line in lines[3:5]] == [["1", "evicted", "a"], ["2", "evicting", "b"]]


def test_show_prints_a_task_with_all_attempts(server: CannedServer, rota: Rota, capsys: Out) -> None:
    attempts = [
        {"attempt": 1, "state": "lost", "node": "a"},
        {"attempt": 2, "state": "succeeded", "node": "b"},
    ]
    server.on("GET /v1/jobs/12", job("succeeded", count=5))
    server.on("GET /v1/jobs/12/tasks/3", task(3, attempts=attempts))

    rota("show", "12.3")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("task 3 succeeded")
    assert [line.split()[1:4] for line in lines[3:5]] == [["1", "lost", "a"], ["2", "succeeded", "b"]]


def test_a_dot_in_a_name_is_part_of_the_name(server: CannedServer, rota: Rota) -> None:
    server.on("GET /v1/jobs/python3.11", job())
    server.on("GET /v1/jobs/12/tasks", {"tasks": [], "next": None})

    assert rota("show", "python3.11") == 0


def test_why_prints_every_reason_and_the_change_that_would_help(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    text = "2 of 3 nodes have too little memory: largest free 7.2 GiB, asked 8 GiB"
    answer = {
        "job": "12",
        "waits": True,
        "sentence": "1 task waits.",
        "reasons": [{"kind": "memory", "count": 2, "of": 3, "text": text}],
        "changes": ["would start on n7 with memory <= 7.2 GiB"],
        "position": 1,
    }
    server.on("GET /v1/jobs/12", job())
    server.on("GET /v1/jobs/12/why", answer)

    rota("why", "12")

    assert capsys.readouterr().out.splitlines() == [
        "job 12: 1 task waits.",
        f"  - {text}",
        "  → would start on n7 with memory <= 7.2 GiB",
        "  place 1 in the queue, start unknown",
    ]


def test_logs_keep_both_streams_apart(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"out\xfe\n"), chunk(b"err\n", "stderr")))

    assert rota("logs", "12") == 0

    assert capfdbinary.readouterr() == (b"out\xfe\n", b"err\n")


def test_unreadable_output_is_reported_on_stderr(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    gap = {"index": 0, "attempt": 1, "stream": "stdout", "missing": 0, "reason": "node n2 is lost"}
    some = {**gap, "stream": "stderr", "missing": 7, "reason": "more was written than is kept"}
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(*(json.dumps(each).encode() + b"\n" for each in (gap, some))))

    assert rota("logs", "12") == 0

    assert capfdbinary.readouterr().err.decode().splitlines() == [
        "task 0: stdout is missing: node n2 is lost",
        "task 0: 7 bytes of stderr are missing: more was written than is kept",
    ]


def test_a_single_requested_stream_goes_to_stdout(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    server.on("GET /v1/jobs/12", job("succeeded"))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"err\n", "stderr")))

    rota("logs", "12", "--stderr", "--attempt", "2")

    assert capfdbinary.readouterr() == (b"err\n", b"")
    expected = {"format": "chunks", "stream": "stderr", "attempt": "2"}
    assert server.asked("GET /v1/jobs/12/logs")[0].query == expected


def test_logs_of_an_array_are_marked_with_the_index(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    server.on("GET /v1/jobs/12", job("succeeded", count=2))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"a\nb\n", index=0), chunk(b"c", index=1)))

    rota("logs", "12")

    assert capfdbinary.readouterr().out == b"[0] a\n[0] b\n[1] c\n"


def test_one_task_of_an_array_is_printed_as_it_is(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    server.on("GET /v1/jobs/12", job("succeeded", count=2))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"c", index=1)))

    rota("logs", "12.1")
    rota("logs", "12", "--index", "1")

    assert capfdbinary.readouterr().out == b"cc"
    assert [seen.query["index"] for seen in server.asked("GET /v1/jobs/12/logs")] == ["1", "1"]


def test_tail_prints_the_last_lines_and_follow_continues(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    server.on("GET /v1/jobs/12", job("succeeded"))
    before, after = chunk(b"2\n3", offset=2), chunk(b"\n4\n", offset=5)
    server.on("GET /v1/jobs/12/logs", output(before, after))

    rota("logs", "-f", "--tail", "2", "12")

    assert capfdbinary.readouterr().out == b"2\n3\n4\n"
    assert server.asked("GET /v1/jobs/12/logs")[0].query["tail"] == "2"


def test_wait_returns_the_exit_code_of_the_first_job_that_failed(server: CannedServer, rota: Rota) -> None:
    for number, code in (("1", 0), ("2", 7), ("3", 9)):
        final = job("failed" if code else "succeeded", id=number, exit_code=code)
        server.on(f"GET /v1/jobs/{number}", final)
        server.on(f"GET /v1/jobs/{number}/follow", statuses(final))

    assert rota("wait", "1-3") == 7


def test_wait_exits_with_124_at_its_timeout(server: CannedServer, rota: Rota, capsys: Out) -> None:
    never = threading.Event()
    server.on("GET /v1/jobs/12", job())
    server.on("GET /v1/jobs/12/follow", statuses(job(), never))

    assert rota("wait", "12", "--timeout", "100ms") == 124

    never.set()
    assert "error: timed_out:" in capsys.readouterr().err


def test_cancel_continues_after_a_job_that_cannot_be_canceled(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    server.on("GET /v1/jobs/2", job(id="2"))
    server.on("POST /v1/jobs/2/cancel", Reply(job("canceling", id="2"), 202))

    assert rota("cancel", "1,2", "--reason", "enough") == 4

    assert server.asked("POST /v1/jobs/2/cancel")[0].body == {"reason": "enough"}
    assert "error: not_found: 1:" in capsys.readouterr().err


def test_an_ended_job_can_be_deleted_and_a_running_one_is_refused(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    server.on("GET /v1/jobs/1", job("succeeded", id="1"))
    server.on("DELETE /v1/jobs/1", Reply(status=204))
    server.on("GET /v1/jobs/2", job(id="2"))
    server.on("DELETE /v1/jobs/2", problem(409, "conflict", "job 2 has not ended", hint="cancel it first"))

    assert rota("job", "delete", "1", "2") == 1

    assert (
        capsys.readouterr().err
        == "job 1: deleted\nerror: conflict: job 2 has not ended\nhint: cancel it first\n"
    )


def test_node_ls_shows_reserved_and_total_resources(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/nodes", {"nodes": [node(eligibility="draining")]})

    rota("node", "ls")

    row = capsys.readouterr().out.splitlines()[1]
    for words in ("laptop", "ready, draining", "2/8", "1 GiB/16 GiB", "0.12 s ago"):
        assert words in row


def test_node_ls_wide_shows_how_long_certificates_are_valid(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    now_ms = time.time_ns() // 1_000_000
    good = node(name="good", certificate_expires_at_ms=now_ms + 20 * 3_600_000)
    expired = node(name="expired", certificate_expires_at_ms=now_ms - 50 * 3_600_000)
    server.on("GET /v1/nodes", {"nodes": [good, expired, node(name="dialled")]})

    rota("node", "ls", "-o", "wide")

    out = capsys.readouterr().out
    assert "CERT" in out
    assert re.search(r"good .* for (20h00m|19h59m)", out)
    assert re.search(r"expired .* expired 2d02h ago", out)


def test_server_status_shows_when_certificates_expire_and_warns(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    end_ms = 1_800_000_000_000
    certificates = [
        {"name": name, "made_at_ms": 0, "expires_at_ms": end_ms + later_ms}
        for name, later_ms in (("server", 0), ("ca", 864_000_000))
    ]
    warnings = ["certificate server expires in 5 days, on 2027-01-15 08:00 UTC: see the log"]
    told = {"version": "0.1.0", "certificates": certificates, "certificate_warnings": warnings}
    server.on("GET /v1/server", told)

    assert rota("server", "status") == 0

    out = capsys.readouterr().out
    assert "certs     server until 2027-01-15, ca until 2027-01-25\n" in out
    assert f"warning   {warnings[0]}\n" in out


def test_node_show_prints_one_node(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/nodes/laptop", node(used={"cpu": 0.7, "memory": 512 * 1024**2}))

    rota("node", "show", "laptop")

    out = capsys.readouterr().out
    assert "[█···················] 1 GiB reserved, 512 MiB used of 16 GiB" in out
    assert "region=eu" in out


def test_node_token_prints_the_line_alone_on_stdout(server: CannedServer, rota: Rota, capsys: Out) -> None:
    line = "rota agent --join 'rota://10.0.0.5:3000?token=join_x&ca=sha256:y'"
    server.on("POST /v1/join-tokens", Reply({"token": "join_x", "line": line}, 201))

    rota("node", "token", "--label", "region=eu", "--valid", "10m")

    assert capsys.readouterr().out == line + "\n"
    expected = {"labels": {"region": "eu"}, "valid_seconds": 600.0}
    assert server.asked("POST /v1/join-tokens")[0].body == expected


def test_watchers_have_tokens_of_their_own_and_are_listed_and_removed(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    line = "rota watcher --join 'rota://10.0.0.5:3000?token=join_x&ca=sha256:y'"
    server.on("POST /v1/join-tokens", Reply({"token": "join_x", "line": line}, 201))
    server.on("GET /v1/watchers", Reply({"watchers": [{"id": "w1", "name": "edge", "joined_at_ms": 1}]}))
    server.on("DELETE /v1/watchers/edge", Reply(None, 204))

    rota("watcher", "token", "--valid", "10m")
    rota("watcher", "ls", "-o", "id")
    rota("watcher", "delete", "edge")

    printed = capsys.readouterr()
    assert printed.out == f"{line}\nw1\n"
    assert "watcher edge is removed" in printed.err
    assert server.asked("POST /v1/join-tokens")[0].body == {"role": "watcher", "valid_seconds": 600.0}


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (["drain", "laptop", "--deadline", "5m"], "drain", {"deadline_seconds": 300.0}),
        (["cordon", "laptop"], "cordon", {}),
        (["open", "laptop"], "open", {}),
    ],
)
def test_nodes_are_taken_out_of_service_and_back(
    server: CannedServer, rota: Rota, arguments: list[str], path: str, body: dict[str, Any]
) -> None:
    server.on(f"POST /v1/nodes/laptop/{path}", node())

    assert rota("node", *arguments) == 0

    assert server.asked(f"POST /v1/nodes/laptop/{path}")[0].body == body


def test_events_are_listed_with_their_reason(server: CannedServer, rota: Rota, capsys: Out) -> None:
    ended = {
        "seq": "5.1",
        "at_ms": 0,
        "kind": "task.ended",
        "job": "12",
        "indices": [[0, 3], [7, 7]],
        "why": "exit 0",
    }
    server.on("GET /v1/events", {"events": [ended], "next": "5.1"})

    rota("event", "ls", "--job", "12")

    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[2:] == ["task.ended", "12", "0-3,7", "-", "exit", "0"]
    assert server.asked("GET /v1/events")[0].query == {"job": "12", "limit": "100"}


def test_event_watch_prints_a_record_per_line_until_it_cannot(
    server: CannedServer, rota: Rota, capsys: Out
) -> None:
    happened = {"seq": "1.0", "kind": "job.ended", "job": "12", "why": "done"}
    gone = problem(410, "gone", "that is too long ago", hint="rota event ls")
    server.on("GET /v1/events", events(event("job.ended", happened, "1.0"), cut=True), gone)

    assert rota("event", "watch", "-o", "jsonl") == 1

    captured = capsys.readouterr()
    assert json.loads(captured.out) == happened
    assert captured.err == "error: gone: that is too long ago\nhint: rota event ls\n"


def test_version_tells_client_and_server(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.on("GET /v1/server", {"version": "9.9.9", "epoch": 3, "store": "sqlite"})

    assert rota("version") == 0

    assert "server  9.9.9   epoch 3   store sqlite" in capsys.readouterr().out


def test_version_works_without_a_server(server: CannedServer, rota: Rota, capsys: Out) -> None:
    server.stop()

    assert rota("version", "-o", "json") == 0

    assert json.loads(capsys.readouterr().out)["server"] is None


def test_config_show_prints_the_source_of_each_value(
    server: CannedServer, rota: Rota, capsys: Out, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config.toml").write_text('namespace = "team"\n')
    monkeypatch.setenv("ROTA_OUTPUT", "json")

    rota("config", "show")

    settings = {
        row["key"]: (row["value"], row["source"]) for row in json.loads(capsys.readouterr().out)["settings"]
    }
    assert settings["addr"] == (server.addr, f"file {home / 'contexts' / 'local.toml'}")
    assert settings["token"][0] == "***"
    assert settings["namespace"] == ("team", f"file {home / 'config.toml'}")
    assert settings["output"] == ("json", "environment ROTA_OUTPUT")
    assert settings["context"] == ("local", "default")


def test_config_check_names_the_wrong_key_and_the_nearest(rota: Rota, capsys: Out, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[http_server]\nadr = "127.0.0.1:3000"\n')

    assert rota("config", "check", str(file)) == 2

    expected = (
        f"error: bad_config: {file}, line 2: http_server.adr: there is no such key\n"
        "hint: did you mean http_server.addr?\n"
    )
    assert capsys.readouterr().err == expected


def test_config_check_accepts_a_valid_file(rota: Rota, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('join = "rota://10.0.0.5:3000?token=x"\n[labels]\nregion = "eu"\n')

    assert rota("config", "check", str(tmp_path / "agent.toml")) == 0


def test_config_path_is_where_the_file_would_be(rota: Rota, capsys: Out, home: Path) -> None:
    rota("config", "path")

    assert capsys.readouterr().out == f"{home / 'config.toml'}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(rota: Rota, capsys: Out, shell: str) -> None:
    assert rota("completion", shell) == 0

    assert "_ROTA_COMPLETE" in capsys.readouterr().out


def test_completion_knows_commands_and_flags(
    start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_ROTA_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "rota run --mem")
    monkeypatch.setenv("COMP_CWORD", "2")

    out, _ = start().communicate(timeout=60)

    assert out == b"plain,--memory\n"
