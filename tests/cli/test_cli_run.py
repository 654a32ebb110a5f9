"""`rota run`: submit a job, follow it, pass its output through, and exit with its exit code."""

import io
import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.canned_server import CannedServer, Reply, chunk, job, output, problem, statuses, task

Rota = Callable[..., int]
Start = Callable[..., subprocess.Popen[bytes]]


def prepare(server: CannedServer, final: dict[str, Any], *pieces: bytes) -> None:
    """A job that writes the chunks and ends as `final`."""
    server.on("POST /v1/jobs", Reply(job("submitted", counts={"pending": 1}, count=final["count"]), 201))
    server.on("GET /v1/jobs/12", final)
    server.on("GET /v1/jobs/12/follow", statuses(job("active", count=final["count"]), final))
    server.on("GET /v1/jobs/12/logs", output(*pieces))
    server.on("GET /v1/jobs/12/tasks/0", task(state=final["state"]))


def test_a_job_runs_and_its_streams_and_exit_code_come_through(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    prepare(
        server,
        job("failed", exit_code=3),
        chunk(b"hel"),
        chunk(b"lo\xff\n", offset=3),
        chunk(b"oh", "stderr"),
    )

    code = rota("run", "-q", "--", "python", "-c", "print('hello')")

    assert code == 3
    assert capfdbinary.readouterr() == (b"hello\xff\n", b"oh")


def test_messages_go_to_stderr(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    prepare(server, job("succeeded"), chunk(b"hello\n"))

    assert rota("run", "--", "python") == 0

    out, err = capfdbinary.readouterr()
    assert out == b"hello\n"
    assert err.decode().splitlines() == [
        "job 12 “python” placed on laptop, started after 0.04 s",
        "succeeded in 0.10 s   exit 0   peak 9 MiB",
    ]


def test_a_job_is_introduced_as_soon_as_it_runs(server: CannedServer, start: Start) -> None:
    prepare(server, job("succeeded"))
    told = threading.Event()
    server.on("GET /v1/jobs/12/follow", statuses(job(started_at_ms=None), told, job("succeeded")))
    process = start("run", "--", "sleep")
    assert process.stderr is not None

    line = process.stderr.readline()
    told.set()

    assert "placed on laptop" in line.decode()
    assert process.wait(timeout=60) == 0


def test_retry_flags_take_precedence_over_the_file(server: CannedServer, rota: Rota, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["x"]\n[retry]\nattempts = 9\non = [1]\njitter = 0\n')
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))

    rota(
        *shlex.split(
            f"run -d --no-workdir --retry 3 --retry-on 75,oom --fail-on 64-66 --retry-delay 5s -f {file}"
        )
    )

    (seen,) = server.asked("POST /v1/jobs")
    assert seen.body == {
        "command": ["x"],
        "retries": 3,
        "retry_on": [75, "oom"],
        "fail_on": [64, 65, 66],
        "retry": {"jitter": 0, "delay": "5s"},
        "workdir": None,
    }


def test_flags_become_the_spec(server: CannedServer, rota: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDED_ON", "yes")
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))

    rota(
        *shlex.split("run -d -c 0.5 -m 4g --gpu 1 --array 0-99%8 --retry 3 --timeout 10m --env A=b=c"),
        *shlex.split(
            "--env HANDED_ON --resource licence=2 --label team=x --priority 70 --key k --no-workdir"
        ),
        *shlex.split(
            "--run-mode at_most_once --where 'region == eu' --where 'gpu_model exists' -- train --flag"
        ),
    )

    (seen,) = server.asked("POST /v1/jobs")
    assert seen.headers["Idempotency-Key"] == "k"
    assert seen.body == {
        "command": ["train", "--flag"],
        "cpu": 0.5,
        "memory": "4g",
        "gpu": 1,
        "count": 100,
        "parallel": 8,
        "retries": 3,
        "timeout": "10m",
        "env": {"A": "b=c", "HANDED_ON": "yes"},
        "resources": {"licence": 2},
        "labels": {"team": "x"},
        "priority": 70,
        "run": "at_most_once",
        "workdir": None,
        "where": ["region == eu", "gpu_model exists"],
    }


def test_placement_flags_become_the_spec(server: CannedServer, rota: Rota) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))

    rota(
        *shlex.split("run -d --no-workdir --gpu 0.5 --gpu-model A100 --region eu --on node-1 --gang --pack"),
        *shlex.split("--prefer 'ssd exists weight 20' --near 'job == db' --near 'app == web over rack'"),
        *shlex.split("--apart 'app == ci' --spread region --spread 'rack skew 2' --tolerate dedicated=ci"),
        *shlex.split("--noise disk --not-preemptible --evict-at-most 1 --expect 10m --deadline 2h -- train"),
    )

    assert server.asked("POST /v1/jobs")[0].body == {
        "command": ["train"],
        "workdir": None,
        "gpu": 0.5,
        "gpu_model": "A100",
        "region": "eu",
        "on": "node-1",
        "gang": True,
        "policy": "pack",
        "prefer": ["ssd exists weight 20"],
        "near": ["job == db", "app == web over rack"],
        "apart": ["app == ci"],
        "spread": ["region", "rack skew 2"],
        "tolerate": ["dedicated=ci"],
        "noise": "disk",
        "preemptible": False,
        "evict_at_most": 1,
        "expect": "10m",
        "deadline": "2h",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.toml", 'command = ["train"]\ndeadline = 2026-12-01T08:00:00+01:00\n'),
        ("job.yaml", "command: [train]\ndeadline: 2026-12-01T08:00:00+01:00\n"),
        ("job.json", '{"command": ["train"], "deadline": "2026-12-01T08:00:00+01:00"}'),
    ],
)
def test_a_time_in_a_job_file_is_a_time_in_the_spec(
    server: CannedServer, rota: Rota, tmp_path: Path, name: str, text: str
) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))
    (tmp_path / name).write_text(text)

    rota("run", "-d", "-f", str(tmp_path / name))

    assert server.asked("POST /v1/jobs")[0].body["deadline"] == "2026-12-01T08:00:00+01:00"


@pytest.mark.parametrize("how", [["-d"], []])
def test_warnings_are_printed_on_stderr_unless_quiet(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    prepare(server, job("succeeded"))
    warning = {"field": "region", "text": "no node has the label region\x1b[2J now"}
    server.on("POST /v1/jobs", Reply(job("submitted", warnings=[warning]), 201))
    if not how:
        server.on("POST /v1/jobs", statuses(job("submitted", warnings=[warning]), job("succeeded")))

    rota("run", *how, "--region", "moon", "--", "true")
    err = capsys.readouterr().err
    rota("run", "-q", *how, "--region", "moon", "--", "true")

    assert err.startswith("warning: region: no node has the label region\ufffd[2J now\n")
    assert "warning" not in capsys.readouterr().err


def test_the_working_directory_is_the_current_one_unless_said(server: CannedServer, rota: Rota) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))

    rota("run", "-d", "--", "true")
    rota("run", "-d", "--workdir", "sub", "--", "true")

    asked = [seen.body["workdir"] for seen in server.asked("POST /v1/jobs")]
    assert asked == [os.getcwd(), os.path.join(os.getcwd(), "sub")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.toml", 'command = ["train"]\nmemory = "1g"\n[env]\nA = "file"\nB = "file"\n'),
        ("job.yaml", "command: [train]\nmemory: 1g\nenv: {A: file, B: file}\n"),
        ("job.json", '{"command": ["train"], "memory": "1g", "env": {"A": "file", "B": "file"}}'),
    ],
)
def test_flags_take_precedence_over_a_job_file(
    server: CannedServer, rota: Rota, tmp_path: Path, name: str, text: str
) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))
    (tmp_path / name).write_text(text)

    rota("run", "-d", "-f", str(tmp_path / name), "-m", "2g", "--env", "A=flag", "--no-workdir")

    expected = {"command": ["train"], "memory": "2g", "env": {"A": "flag", "B": "file"}, "workdir": None}
    assert server.asked("POST /v1/jobs")[0].body == expected


@pytest.mark.parametrize("text", ["command = ['train']", "command: [train]", '{"command": ["train"]}'])
def test_the_format_of_a_job_on_stdin_is_detected(
    server: CannedServer, rota: Rota, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))
    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    rota("run", "-d", "-f", "-", "--no-workdir")

    assert server.asked("POST /v1/jobs")[0].body == {"command": ["train"], "workdir": None}


def test_an_unreachable_server_is_a_fault_of_the_cluster(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.client.backoff.RetryBackoff.wait", _give_up)
    prepare(server, job("succeeded"))
    server.on("GET /v1/jobs/12/follow", statuses(job(), cut=True))

    assert rota("run", "-q", "--", "true") == 125

    assert "hint: job 12 keeps running; continue waiting with: rota wait 12" in capsys.readouterr().err


def _give_up(_pauses: object, problem: Exception) -> None:
    raise problem


def test_a_second_attempt_is_announced(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    prepare(server, job("succeeded"), chunk(b"a\n"), chunk(b"b\n", attempt=2))

    rota("run", "--", "true")

    captured = capfdbinary.readouterr()
    assert captured.out == b"a\nb\n"
    assert b"attempt 2 of task 0:\n" in captured.err


def test_detach_prints_the_id_as_data(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST /v1/jobs", Reply(job("submitted"), 201))

    assert rota("run", "--detach", "--", "true") == 0

    assert capsys.readouterr().out == "12\n"


def test_json_at_the_end_instead_of_output(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(server, job("succeeded"), chunk(b"hello\n"))

    assert rota("run", "-o", "json", "--", "true") == 0

    assert json.loads(capsys.readouterr().out)["state"] == "succeeded"


@pytest.mark.parametrize(
    ("final", "code"),
    [
        (job("failed", exit_code=127), 127),
        (job("failed", signal=9), 137),
        (job("failed", reason="the node was lost"), 125),
        (job("timed_out", signal=15), 124),
        (job("canceled", signal=15), 130),
        (job("rejected", counts={}), 125),
    ],
)
def test_the_exit_code_is_that_of_the_job(
    server: CannedServer, rota: Rota, final: dict[str, Any], code: int
) -> None:
    prepare(server, final)

    assert rota("run", "-q", "--", "true") == code


def test_a_rejected_submit_names_the_field_and_what_would_be_accepted(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str]
) -> None:
    detail, hint = "memory: 'abc' is not a size", "write 512m, 4g or 1.5Gi"
    server.on("POST /v1/jobs", problem(400, "bad_field", detail, field="memory", hint=hint))

    assert rota("run", "-m", "abc", "--", "true") == 2

    assert capsys.readouterr().err == f"error: bad_field: {detail}\nhint: {hint}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--array", "5-9", "--", "x"], "starts at 5; an array starts at 0, so write 0-4"),
        (["--array", "0-9", "--count", "3", "--", "x"], "--array and --count exclude each other"),
        (["--env", "NOT_SET_HERE", "--", "x"], "write NOT_SET_HERE=VALUE"),
        (["--label", "x", "--", "x"], "'x' is not NAME=VALUE"),
        ([], "no command to run"),
        (["-f", "missing.toml"], "No such file"),
        (["--memry", "1", "--", "x"], "did you mean '--memory'?"),
    ],
)
def test_wrong_usage_is_reported_and_exits_with_2(
    rota: Rota, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert rota("run", *arguments) == 2

    err = capsys.readouterr().err
    assert err.startswith("error: usage: ")
    assert words in err


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        (["would start on a new node with room for it"], "rota why 12 · add a node: rota node token\n"),
        ([], "rota why 12\n"),
    ],
)
def test_the_reason_for_waiting_is_printed_once(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str], changes: list[str], advice: str
) -> None:
    waiting, told = job("active", counts={"pending": 1}, started_at_ms=None), threading.Event()
    prepare(server, job("succeeded"))
    server.on("GET /v1/jobs/12/follow", statuses(waiting, told, job("succeeded")))

    def why(_: object) -> Reply:
        told.set()
        sentence = "1 task waits: 0 of 1 nodes have a free GPU."
        return Reply({"job": "12", "waits": True, "sentence": sentence, "changes": changes})

    server.on("GET /v1/jobs/12/why", why)

    assert rota("run", "--gpu", "1", "--", "true") == 0

    err = capsys.readouterr().err
    assert err.count(f"0 of 1 nodes have a free GPU.     {advice}") == 1


def test_a_failed_array_lists_failed_tasks_with_reasons(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"succeeded": 8, "failed": 2}
    prepare(
        server,
        job("failed", count=10, counts=counts, exit_code=2),
        chunk(b"Traceback\nboom\n", "stderr", index=3),
    )
    failed = [task(3, "failed", exit_code=2), task(7, "failed", signal=9, node="b")]
    server.on("GET /v1/jobs/12/tasks", {"tasks": failed, "next": None})

    assert rota("run", "--count", "10", "--", "sim") == 2

    assert capsys.readouterr().err.splitlines() == [
        "job 12 “python” failed: 8 of 10 tasks succeeded, 2 failed, in 1.0 s",
        "  task 3 failed   exit 2   node laptop",
        "  task 7 failed   signal 9 (SIGKILL)   node b",
        "last lines of stderr of task 3:",
        "  Traceback",
        "  boom",
        "rota logs 12 --index 3",
    ]


def test_array_progress_is_printed_by_tenths(
    server: CannedServer, rota: Rota, capsys: pytest.CaptureFixture[str]
) -> None:
    final = job("succeeded", count=100)
    prepare(server, final)
    steps = [
        job("active", count=100, counts={"succeeded": done, "running": 4}) for done in (5, 10, 15, 20, 50)
    ]
    server.on("GET /v1/jobs/12/follow", statuses(*steps, final))

    rota("run", "--array", "0-99", "--", "sim")

    err = capsys.readouterr().err
    progress = [line.split(",")[0] for line in err.splitlines() if "tasks done" in line]
    assert progress == [f"job 12: {done} of 100 tasks done" for done in (10, 20, 50)]


def test_output_of_an_array_is_marked_with_the_index(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    pieces = chunk(b"a", index=0), chunk(b"b\nc", index=1), chunk(b"d\n", offset=1, index=0)
    prepare(server, job("succeeded", count=2), *pieces)

    rota("run", "-q", "--count", "2", "--logs", "--", "sim")

    assert capfdbinary.readouterr().out == b"[1] b\n[0] ad\n[1] c\n"


def test_a_server_that_restarts_loses_neither_output_nor_result(
    server: CannedServer, rota: Rota, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    prepare(server, job("succeeded"))
    server.on("GET /v1/jobs/12/follow", statuses(job(), cut=True), statuses(job("succeeded")))
    whole = output(chunk(b"first\n"), chunk(b"second\n", offset=6))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"first\nsec"), cut=True), whole)

    assert rota("run", "-q", "--", "true") == 0

    assert capfdbinary.readouterr().out == b"first\nsecond\n"


def test_ctrl_c_leaves_the_job_running_and_prints_how_to_wait_for_it(
    server: CannedServer, start: Start
) -> None:
    prepare(server, job("succeeded"))
    never = threading.Event()
    server.on("GET /v1/jobs/12/follow", statuses(job(), never))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"ready\n"), never))
    process = start("run", "--", "sleep")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    never.set()

    assert process.returncode == 130
    assert "job 12 keeps running: rota wait 12 · rota logs -f 12" in err.decode()
    assert server.asked("POST /v1/jobs/12/cancel") == []


def test_ctrl_c_cancels_with_cancel_on_interrupt(server: CannedServer, start: Start) -> None:
    prepare(server, job("canceled", signal=15))
    canceled = threading.Event()
    server.on("GET /v1/jobs/12/follow", statuses(job(), canceled, job("canceled", signal=15)))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"ready\n"), canceled))

    def cancel(_: object) -> Reply:
        canceled.set()
        return Reply(job("canceling"), 202)

    server.on("POST /v1/jobs/12/cancel", cancel)
    process = start("run", "--cancel-on-interrupt", "--", "sleep")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=60) == 130
    assert len(server.asked("POST /v1/jobs/12/cancel")) == 1


def test_a_closed_pipe_ends_the_command_quietly(server: CannedServer, start: Start) -> None:
    prepare(server, job("succeeded"))
    gone = threading.Event()
    server.on("GET /v1/jobs/12/follow", statuses(job(), gone, job("succeeded")))
    server.on("GET /v1/jobs/12/logs", output(chunk(b"a\n"), gone, chunk(b"b\n", offset=2)))
    process = start("run", "-q", "--", "yes")
    assert process.stdout is not None
    process.stdout.readline()

    process.stdout.close()
    gone.set()

    assert process.wait(timeout=60) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stdout = None
