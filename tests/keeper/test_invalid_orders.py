"""Invalid orders and specs fail their own attempts, and no others."""

import base64
import errno
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.keeper.parsing import Malformed
from rota.keeper.process.commands import JOB_ERRNOS, NODE_ERRNOS
from rota.keeper.protocol.wire import StartOrder, parse
from rota.model import limits
from rota.model.ids import JobId
from rota.model.messages import JobOrders, task_template
from rota.runtimes.process import keeper_spec
from rota.wire import bounds
from rota.wire.agent import orders_from_wire, orders_to_wire
from tests.keeper.conftest import Agent, Keeper

B64 = base64.b64encode(b"x").decode()
numbers = count(100)  # of jobs


@pytest.fixture(scope="module")
def shared_keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    """One keeper for all tests, none of which may harm it."""
    keeper = Keeper(tmp_path_factory.mktemp("keeper"))
    try:
        yield keeper
    finally:
        keeper.close()


@pytest.fixture
def shared_agent(shared_keeper: Keeper) -> Agent:
    agent = shared_keeper.agent()
    agent.hello()
    return agent


@pytest.mark.parametrize(
    ("argv", "spec", "said"),
    [
        (["true"], {"workdir": "/" + "a" * 300}, "File name too long"),
        (["true"], {"workdir": "/" + "a/" * 2100}, "File name too long"),
        (["true"], {"files": {"f" * 300: B64}}, "File name too long"),
        (["true"], {"files": {"d" * 300 + "/f": B64}}, "File name too long"),
        (["echo", "x" * 131_072], {}, "Argument list too long"),
        (["echo", *["x" * 1000] * 10_000], {}, "Argument list too long"),
        (["true"], {"env": {"BIG": "x" * 131_072}}, "Argument list too long"),
        (["/" + "a" * 300], {}, "File name too long"),
        (["a" * 300], {}, "command not found"),
        (["/etc/passwd"], {}, "permission denied"),
        (["/tmp"], {}, "permission denied"),
    ],
)
def test_an_error_of_the_spec_fails_the_attempt_and_is_no_refusal(
    shared_keeper: Keeper, shared_agent: Agent, argv: list[str], spec: dict[str, Any], said: str
) -> None:
    job = str(next(numbers))
    shared_agent.start(job, *argv, **spec)
    (ended,) = shared_agent.wait_ended()

    assert ended[3] == "exited"
    assert ended[4] in (126, 127)
    assert said.lower() in ended[11].lower()
    assert shared_agent.refused == []
    assert_unharmed(shared_keeper, shared_agent)


@pytest.mark.parametrize(
    "spec",
    [
        {"run": []},
        {"run": None},
        {"check": {"port": 1, "codes": [5], "interval_ms": 1, "timeout_ms": 1}},
        {"container": {"image": []}},
        {"container": []},
        {"sandbox": 7},
        {"timeout_ms": 1 << 53},
        {"grace_ms": 10**400},
        {"needs": {"cpu": -1}},
        {"needs": {"cpu": 1.5}},
        {"needs": {"cpu": True}},
        {"env": {"A": "\ud800"}},
        {"env": {"A=B": ""}},
        {"files": {"../x": B64}},
        {"stop_signal": 9},
        {"restart": {"attempts": -1}},
        {"reports": {"url": None}},
        {"steps": [[]]},
    ],
)
def test_a_malformed_spec_fails_its_attempts(
    shared_keeper: Keeper, shared_agent: Agent, spec: dict[str, Any]
) -> None:
    job = str(next(numbers))
    shared_agent.start(job, "true", tasks=[[0, 1, 1], [1, 1, 1]], **spec)
    ended = shared_agent.wait_ended(2)

    assert [row[:5] for row in ended] == [[job, 0, 1, "exited", 126], [job, 1, 1, "exited", 126]]
    assert all("its order cannot be parsed: spec" in row[11] for row in ended)
    assert_unharmed(shared_keeper, shared_agent)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b'{"op":' + b"9" * 5000 + b"}",
        b'{"op":{}}',
        b'{"op":"start"}',
        b'{"op":"start","job":"7","tasks":5}',
        b'{"op":"start","job":"../../etc","spec":null,"tasks":[[0,1,1]]}',
        b'{"op":"start","job":"7","spec":null,"tasks":[[NaN,1,1]]}',
        b'{"op":"stop","attempts":[["7",0,1]],"how":[]}',
        b'{"op":"stop","attempts":[["7",0,1]],"how":true}',
        b'{"op":"signal","signals":[["7",0,1,[],1]]}',
        b'{"op":"signal","signals":[["7",0,1,999,1]]}',
        b'{"op":"renew","said_ns":1e400}',
        b'{"op":"renew","said_ns":-1}',
        b'{"op":"forget","jobs":[["7"]]}',
        b'{"op":"ack","attempts":{}}',
        b'{"op":"configure","node":"n1","amounts":{"cpu":Infinity}}',
        b'{"op":"configure","node":"n1","amounts":{},"engine":{"kind":[]}}',
    ],
)
def test_an_unparsable_line_is_answered_with_an_error(
    shared_keeper: Keeper, shared_agent: Agent, line: bytes
) -> None:
    shared_agent.send_line(line)

    assert shared_agent.receive_op("error")["reason"]
    assert_unharmed(shared_keeper, shared_agent)


def test_a_keeper_parses_every_spec_that_a_server_accepts() -> None:
    most = {"cpu": limits.CPU_MILLI_MAX / 1000, "memory": limits.AMOUNT_MAX, "log_bytes": limits.AMOUNT_MAX}
    spec = parse_spec(
        {
            **most,
            "command": ["true"],
            "kind": "service",
            "disk": limits.AMOUNT_MAX,
            "resources": {"licence": limits.AMOUNT_MAX},
            "limits": {"memory": limits.AMOUNT_MAX, "cpu": most["cpu"], "pids": limits.PIDS_MAX},
            "count": limits.COUNT_MAX,
            "grace": limits.GRACE_SECONDS_MAX,
            "restart": {"attempts": limits.RESTART_ATTEMPTS_MAX, "within": limits.TIMEOUT_SECONDS_MAX},
            "check": {
                "tcp": 65535,
                "interval": limits.TIMEOUT_SECONDS_MAX,
                "failures": limits.CHECK_COUNT_MAX,
            },
        }
    )
    work = orders_from_wire(orders_to_wire(JobOrders(JobId("7"), task_template(spec), [], []))).work
    assert work is not None
    tasks = [[limits.COUNT_MAX, limits.TRIES_MAX, 1]]
    order = parse(json.dumps({"op": "start", "job": "7", "spec": keeper_spec(work), "tasks": tasks}).encode())

    assert isinstance(order, StartOrder)
    assert order.spec is not None
    assert order.spec.limits.memory_bytes == limits.AMOUNT_MAX
    bounds.check(orders_to_wire(JobOrders(JobId("7"), work, [], [])))


def test_leases_are_renewed_on_a_machine_with_years_of_uptime() -> None:
    parse(json.dumps({"op": "renew", "said_ns": 10 * 365 * 24 * 3600 * 10**9}).encode())
    with pytest.raises(Malformed, match="said_ns"):
        parse(json.dumps({"op": "renew", "said_ns": 1 << 63}).encode())


ODD_LINES = (
    b"\xff",
    b"[" * 100_000,
    b'["end",["7",0,2,"exited"]]',
    b'["end",["7",0,2,"exited",0,null,1,2,3,4,5,[]]]',
    b'["end",[["7"],0,1,"exited",0,null,1,2,3,4,5,null]]',
    b'["life","7",0,1,[]]',
    b'["step","7",0,1,1,{}]',
    b'["highest","7",[[0]]]',
    b'["spec","7",{"run":[]}]',
    b'["start",null,0,1,5]',
    b'["forget",7]',
    b'["ack",[7]]',
    b'{"boot":1}',
)


def test_a_keeper_starts_with_a_journal_that_holds_odd_lines(keeper: Keeper) -> None:
    first = keeper.agent()
    first.hello()
    first.start("7", "true")
    first.wait_ended()
    first.sync()
    keeper.kill()
    with (keeper.root / "journal").open("ab") as journal:
        journal.writelines(line + b"\n" for line in ODD_LINES)
    keeper.start()
    second = keeper.agent()
    state = second.hello()

    assert [row[:4] for row in state["ended"]] == [["7", 0, 1, "exited"]]
    assert keeper.log().count("cannot be read and is left out") == len(ODD_LINES)
    assert_unharmed(keeper, second)


def test_an_errno_belongs_to_the_node_or_to_the_job_not_to_both() -> None:
    assert not NODE_ERRNOS & JOB_ERRNOS
    assert {errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EIO} <= NODE_ERRNOS
    assert {errno.ENAMETOOLONG, errno.E2BIG} <= JOB_ERRNOS


def assert_unharmed(keeper: Keeper, agent: Agent) -> None:
    """Assert that an attempt of another job starts and ends."""
    before, job = len(agent.ended), str(next(numbers))
    agent.start(job, "true")
    assert agent.wait_ended(before + 1)[-1][:5] == [job, 0, 1, "exited", 0]
    assert keeper.process.poll() is None
