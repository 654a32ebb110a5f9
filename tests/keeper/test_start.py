"""Started attempts: result, output, environment and descriptors."""

import os
import resource
import shutil
import signal
import sys
from pathlib import Path

from tests.keeper.conftest import Agent, Keeper, wait_until


def test_a_result_has_exit_code_times_and_usage(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "exit 3")

    job, index, attempt, state, code, signum, started_ms, ended_ms, ran_us, cpu_us, _, reason = (
        agent.wait_ended()[0]
    )
    assert [job, index, attempt, state, code, signum, reason] == ["7", 0, 1, "exited", 3, None, None]
    assert started_ms <= ended_ms
    assert min(ran_us, cpu_us) > 0


def test_peak_memory_is_reported_if_it_exceeds_the_keepers(agent: Agent) -> None:
    agent.start("7", sys.executable, "-c", "bytearray(100 << 20)")
    agent.start("8", "true", tasks=[[index, 1, 1] for index in range(200)])
    peaks_kib = {row[0]: row[10] for row in sorted(agent.wait_ended(201), key=lambda row: row[10])}

    assert 100 << 10 < peaks_kib["7"] < 200 << 10
    assert peaks_kib["8"] == 0  # below the keeper's own peak, so it is unknown


def test_a_death_by_signal_is_reported_as_one(agent: Agent) -> None:
    agent.start("7", "sh", "-c", "kill -9 $$")

    assert agent.wait_ended()[0][3:6] == ["exited", None, signal.SIGKILL]


def test_both_streams_go_to_files_in_the_order_written(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "for i in 1 2 3; do echo out $i; echo err $i >&2; done")
    agent.wait_ended()

    assert keeper.output("7") == "out 1\nout 2\nout 3\n"
    assert keeper.output("7", stream="err") == "err 1\nerr 2\nerr 3\n"


def test_a_command_that_does_not_exist_ends_with_127(agent: Agent) -> None:
    agent.start("7", "no-such-command")
    agent.start("8", "./no-such-file")

    assert [row[3:5] + row[-1:] for row in agent.wait_ended(2)] == [
        ["exited", 127, "command not found: no-such-command"],
        ["exited", 127, "command not found: ./no-such-file"],
    ]


def test_a_file_that_may_not_be_executed_ends_with_126(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("hello")
    agent.start("7", str(tmp_path / "plain"))

    assert agent.wait_ended()[0][4] == 126
    assert agent.ended[0][-1] == f"permission denied: {tmp_path}/plain"


def test_a_missing_working_directory_ends_with_126(agent: Agent) -> None:
    agent.start("7", "true", workdir="/no/such/directory")

    assert agent.wait_ended()[0][4] == 126
    assert agent.ended[0][-1] == "working directory /no/such/directory: No such file or directory"


def test_a_command_that_cannot_start_releases_its_resources(agent: Agent) -> None:
    agent.start("7", "no-such-command", needs={"cpu": 4000})
    agent.start("8", "true", needs={"cpu": 4000})

    assert [row[4] for row in agent.wait_ended(2)] == [127, 0]


def test_each_job_starts_in_its_own_directory(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "pwd")
    agent.start("8", "pwd", workdir="/")
    agent.start("9", "pwd")
    agent.wait_ended(3)

    assert keeper.output("7") == f"{keeper.root}/work/7\n"
    assert keeper.output("8") == "/\n"
    assert keeper.output("9") == f"{keeper.root}/work/9\n"


def test_an_attempt_gets_its_own_environment_and_inherits_little(keeper: Keeper, agent: Agent) -> None:
    needs = {"cpu": 500, "memory": 64}
    agent.start("7", "env", tasks=[[4, 2, 1]], name="fit", count=9, env={"MINE": "1"}, needs=needs)
    agent.wait_ended()
    env = dict(line.split("=", 1) for line in keeper.output("7", 4, 2).splitlines())

    assert {name: value for name, value in env.items() if name.startswith(("ROTA_", "MINE"))} == {
        "MINE": "1",
        "ROTA_ATTEMPT": "2",
        "ROTA_COUNT": "9",
        "ROTA_CPUS": "0.5",
        "ROTA_GPUS": "",
        "ROTA_INDEX": "4",
        "ROTA_JOB_ID": "7",
        "ROTA_JOB_NAME": "fit",
        "ROTA_KEEPER": (keeper.root / "keeper.id").read_text().strip(),
        "ROTA_MEMORY_BYTES": "64",
        "ROTA_NODE": "n1",
        "ROTA_OUTPUT_DIR": f"{keeper.root}/tasks/7/4/out",
    }
    assert os.path.isdir(env["ROTA_OUTPUT_DIR"])
    assert "PYTEST_CURRENT_TEST" not in env


def test_an_attempt_that_reports_gets_the_urls_of_all_servers(keeper: Keeper, agent: Agent) -> None:
    door = {"url": "http://a", "key": "k", "node": "n1", "ca": ""}
    for attempt, more in ((1, {}), (2, {"others": ["http://b"]}), (3, {"url": "http://b", "others": []})):
        agent.start("7", "printenv", "ROTA_RESULT_URLS", tasks=[[0, attempt, 1]], reports=door | more)
        agent.wait_ended(attempt)
    outputs = [keeper.output("7", 0, attempt).split() for attempt in (1, 2, 3)]

    path = "v1/jobs/7/tasks/0/attempts"
    assert outputs == [
        [f"http://a/{path}/1/result"],
        [f"http://a/{path}/2/result", f"http://b/{path}/2/result"],
        [f"http://b/{path}/3/result"],
    ]


def test_an_attempt_whose_agent_reports_gets_a_result_file(keeper: Keeper, agent: Agent) -> None:
    door = {"url": "https://a", "key": "", "node": "n1", "ca": "pem", "others": ["b"], "by_agent": True}
    script = 'echo "$ROTA_RESULT_FILE" | tee "$ROTA_RESULT_FILE"; env | grep -c -e ROTA_TOKEN -e RESULT_URL'
    agent.start("7", "sh", "-c", script, reports=door)
    agent.wait_ended()
    file = f"{keeper.root}/tasks/7/0/report/1.json"

    assert keeper.output("7") == f"{file}\n0\n"
    assert Path(file).read_text() == f"{file}\n"
    assert keeper.agent().hello()["reports"] == {"7": door}


def test_an_attempt_gets_three_descriptors_and_default_signals(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "ls /proc/$$/fd; readlink /proc/$$/fd/0; grep SigIgn /proc/$$/status; :")
    agent.wait_ended()
    *descriptors, _, ignored = keeper.output("7").split()

    assert descriptors == ["0", "1", "2", "/dev/null"]
    assert int(ignored, 16) & ~(3 << 31) == 0  # the C library keeps signals 32 and 33 for itself


def test_an_at_most_once_attempt_is_on_disk_before_it_starts(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "cat", f"{keeper.root}/journal", run="at_most_once")
    agent.wait_ended()

    assert '["start","7",0,1,' in keeper.output("7")


def test_an_attempt_that_does_not_fit_waits_and_one_that_never_can_is_refused(agent: Agent) -> None:
    agent.start("7", "sleep", "60", needs={"cpu": 3000})
    agent.start("8", "true", needs={"cpu": 2000})
    agent.start("9", "true", needs={"cpu": 5000})

    assert agent.wait_refused() == [["9", 0, 1, "needs 5000 of cpu, this node has 4000"]]
    assert not agent.ended
    agent.stop(["7", 0, 1])
    assert [row[:4] for row in agent.wait_ended(2)] == [["7", 0, 1, "stopped"], ["8", 0, 1, "exited"]]


def test_parallel_failures_to_execute_are_all_results(agent: Agent) -> None:
    agent.start("7", "./no-such-file", tasks=[[index, 1, 1] for index in range(100)])
    agent.start("8", "true", tasks=[[index, 1, 1] for index in range(100)])

    assert sorted((row[0], row[4]) for row in agent.wait_ended(200)) == [("7", 127)] * 100 + [("8", 0)] * 100
    assert not agent.refused


def test_without_space_for_the_journal_nothing_starts_and_results_are_kept(
    keeper: Keeper, agent: Agent
) -> None:
    """A limit on the file size replaces a full disk."""
    limits = resource.prlimit(keeper.process.pid, resource.RLIMIT_FSIZE)
    agent.start("7", "sh", "-c", "until [ -e go ]; do sleep 0.01; done")
    agent.wait_started()
    size = (keeper.root / "journal").stat().st_size
    resource.prlimit(keeper.process.pid, resource.RLIMIT_FSIZE, (size, limits[1]))
    agent.send(op="start", job="7", spec=None, tasks=[[1, 1, 1]])

    assert agent.wait_refused()[0][3].startswith("cannot write the journal: ")
    (keeper.root / "work/7/go").touch()
    assert agent.wait_ended()[0][:5] == ["7", 0, 1, "exited", 0]
    assert (keeper.root / "journal").stat().st_size == size
    resource.prlimit(keeper.process.pid, resource.RLIMIT_FSIZE, limits)
    agent.send(op="start", job="7", spec=None, tasks=[[1, 2, 1]])
    assert agent.wait_ended(2)[1][:5] == ["7", 1, 2, "exited", 0]
    keeper.kill()
    keeper.start()
    assert [row[1:4] for row in keeper.agent().hello()["ended"]] == [[0, 1, "exited"], [1, 2, "exited"]]


def test_removed_log_files_cost_one_start_and_are_created_again(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "echo", "before")
    agent.wait_ended()
    shutil.rmtree(keeper.root / "logs" / "7")
    agent.start("7", "echo", "hello", tasks=[[1, 1, 1]])

    assert agent.wait_refused() == [["7", 1, 1, "No such file or directory on this node"]]
    agent.start("7", "echo", "hello", tasks=[[2, 1, 1]])
    agent.wait_ended(2)
    assert keeper.output("7", 2) == "before\n"


def test_thousands_of_short_attempts_leave_nothing_behind(keeper: Keeper, agent: Agent) -> None:
    keeper.wait_preallocated()
    descriptors = f"/proc/{keeper.process.pid}/fd"
    before = len(os.listdir(descriptors))
    agent.start("7", "true", count=2000, tasks=[[index, 1, 0] for index in range(2000)])
    agent.wait_ended(2000)

    assert {row[1] for row in agent.ended} == set(range(2000))
    assert {row[4] for row in agent.ended} == {0}
    assert len(agent.ended) == 2000
    assert len(keeper.segments("7")) <= 4 * 2  # as many as ran at once
    agent.send(op="forget", jobs=["7"])
    wait_until(lambda: len(os.listdir(descriptors)) <= before, "the last file closed")
    wait_until(lambda: not keeper.children(), "the last zombie buried")
