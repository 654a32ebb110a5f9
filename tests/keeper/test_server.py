"""The keeper's socket: agents that reconnect, repeat themselves and send malformed lines."""

import json
from typing import Any

import pytest

from tests.keeper.conftest import SPEC, Agent, Keeper, wait_until


def test_a_reconnecting_agent_gets_the_whole_state(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "exit 4")
    agent.wait_ended()
    agent.start("8", "sleep", "600", needs={"cpu": 4000})
    agent.wait_started()
    agent.start("9", "true")
    agent.close()
    state = keeper.agent().hello()

    assert state["jobs"] == ["7", "8", "9"]
    assert [row[:4] for row in state["live"]] == [["9", 0, 1, "queued"], ["8", 0, 1, "running"]]
    assert [row[:5] for row in state["ended"]] == [["7", 0, 1, "exited", 4]]


def test_a_result_is_sent_at_each_hello_until_it_is_acknowledged(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "true")
    row = agent.wait_ended()[0]

    again = keeper.agent()
    assert again.hello()["ended"] == [row]
    again.send(op="ack", attempts=[["7", 0, 1]])
    assert keeper.agent().hello()["ended"] == []


def test_an_end_without_an_agent_is_in_the_next_state(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo done")
    agent.wait_started()
    agent.close()
    (keeper.root / "work/7/go").touch()
    wait_until(lambda: keeper.output("7") == "done\n", "the end of the work")
    back = keeper.agent()
    state = back.hello()

    rows = state["ended"] or back.wait_ended()
    assert [row[:5] for row in rows] == [["7", 0, 1, "exited", 0]]


def test_a_newer_connection_replaces_the_older(keeper: Keeper, agent: Agent) -> None:
    newer = keeper.agent()
    newer.hello()
    newer.start("7", "true")

    assert newer.wait_ended()[0][0] == "7"
    with pytest.raises(AssertionError, match="hung up"):
        agent.receive()


def test_the_same_order_twice_starts_one_attempt(keeper: Keeper, agent: Agent) -> None:
    command = ("sh", "-c", "echo once; sleep 0.1")
    agent.start("7", *command)
    agent.start("7", *command)
    row = agent.wait_ended()[0]
    agent.start("7", *command)

    assert agent.wait_ended(2) == [row, row]
    assert keeper.output("7") == "once\n"
    assert not agent.refused


def test_an_acknowledged_or_older_attempt_is_refused(agent: Agent) -> None:
    agent.start("7", "true", tasks=[[0, 3, 1]])
    agent.wait_ended()
    agent.send(op="ack", attempts=[["7", 0, 3]])
    agent.start("7", "true", tasks=[[0, 3, 1], [0, 2, 1], [0, 4, 1], [1, 1, 1]])

    assert agent.wait_refused(2) == [
        ["7", 0, 3, "attempt 3 is not newer than 3"],
        ["7", 0, 2, "attempt 2 is not newer than 3"],
    ]
    assert {tuple(row[1:3]) for row in agent.wait_ended(3)} == {(0, 3), (0, 4), (1, 1)}


def test_an_unknown_job_needs_a_spec_and_a_known_one_does_not(agent: Agent) -> None:
    agent.start("7", "true")
    agent.send(op="start", job="7", spec=None, tasks=[[1, 1, 1]])
    agent.send(op="start", job="8", spec=None, tasks=[[0, 1, 1]])

    assert agent.wait_refused() == [["8", 0, 1, "unknown job"]]
    assert sorted(row[:2] for row in agent.wait_ended(2)) == [["7", 0], ["7", 1]]


def start_line(**fields: Any) -> bytes:
    """An order to start job 7 with a spec that has these fields."""
    order = {"op": "start", "job": "7", "spec": {**SPEC, "argv": ["a"], **fields}, "tasks": []}
    return json.dumps(order).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not a line of JSON"),
        (b"\xff", "not a line of JSON"),
        (b"[" * 100_000, "not a line of JSON"),
        (b"3", "want an object"),
        (b'{"op":"dance"}', "unknown op 'dance': want one of hello"),
        (b'{"op":["hello"]}', "unknown op"),
        (b'{"op":"hello","protocol":"one"}', "protocol: want a whole number"),
        (b'{"op":"start","job":"../etc","spec":null,"tasks":[]}', "job: want"),
        (b'{"op":"start","job":"7","spec":null,"tasks":[[0,1]]}', "tasks: want a list of"),
        (b'{"op":"start","job":"7","spec":null,"tasks":[[0,1,1,-1]]}', "gpus: want a whole number"),
        (b'{"op":"start","job":"7","spec":null,"tasks":[[0,1,1,18446744073709551616]]}', "gpus: want"),
        (b'{"op":"start","job":"7","spec":null,"tasks":[[0,true,1]]}', "attempt: want a whole number"),
        (start_line(argv=[]), "spec.argv: want a command"),
        (start_line(count=None), "spec.count: want a whole number"),
        (start_line(argv=["a\0"]), "spec.argv: want text"),
        (start_line(argv=["\ud800"]), "spec.argv: want text"),
        (start_line(env={"A=": "c"}), "spec.env: want names"),
        (start_line(run="twice"), "spec.run: want one of"),
        (b'{"op":"configure","node":"n","amounts":{"cpu":-1},"gpus":[]}', "amounts.cpu: want a whole number"),
        (b'{"op":"configure","node":"n","amounts":{},"gpus":["0","0"]}', "gpus: want each id once"),
        (b'{"op":"stop","attempts":[["7"]]}', "attempts: want a list of"),
        (b'{"op":"forget","jobs":[".."]}', "job: want"),
    ],
)
def test_a_malformed_line_is_answered_and_the_agent_stays_connected(
    agent: Agent, line: bytes, reason: str
) -> None:
    agent.send_line(line)

    assert agent.receive_op("error")["reason"].startswith(reason)
    agent.start("7", "true")
    assert agent.wait_ended()[0][4] == 0


def test_a_forgotten_job_leaves_no_files_and_no_records(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sh", "-c", "echo hello > file")
    agent.wait_ended()
    agent.send(op="forget", jobs=["7"])
    agent.send(op="start", job="7", spec=None, tasks=[[0, 2, 1]])

    assert agent.wait_refused()[0][3] == "unknown job"
    assert not (keeper.root / "logs" / "7").exists()
    assert not (keeper.root / "work" / "7").exists()
    wait_until(lambda: not list((keeper.root / "trash").iterdir()), "the end of the files")


def test_a_forgotten_job_can_be_started_again(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "pwd")
    agent.wait_ended()
    agent.send(op="forget", jobs=["7"])
    agent.start("7", "pwd")
    agent.wait_ended(2)

    assert keeper.output("7") == f"{keeper.root}/work/7\n"


def test_a_job_with_live_attempts_is_not_forgotten(keeper: Keeper, agent: Agent) -> None:
    agent.start("7", "sleep", "600")
    agent.wait_started()
    agent.send(op="forget", jobs=["7"])

    assert agent.receive_op("error")["reason"] == "jobs: still live, not forgotten: 7"
    assert keeper.output("7") == ""


def test_an_agent_that_does_not_read_delays_no_attempt(keeper: Keeper, agent: Agent) -> None:
    reader = keeper.agent()
    reader.hello()
    marker = keeper.root / "logs/8/0.out"
    many = [[index, 1, 0] for index in range(600)]
    reader.start("7", "no-such-command-" + "x" * 3000, tasks=many)  # over a socket's buffer of answers
    reader.start("8", "sh", "-c", "echo done")

    wait_until(marker.exists, "work after the unread answers")
    assert len(reader.wait_ended(601)) == 601
