"""A worker's address is a node; what is pinned to it may come there, and what it cannot carry is refused."""

from typing import Any

import pytest

from rota.engine.state.mirror import Mirror
from rota.gateway.job_translation import PATH, WorkerCommand, why_unsupported, worker_command
from rota.gateway.registration import deregister, register, registered
from rota.model import limits
from rota.model.errors import QueueFull
from rota.model.ids import NodeId
from rota.model.messages import TaskTemplate, task_template
from rota.model.node import Dialled, NodeSpec
from rota.model.shape import Constraint, Op, RunMode
from rota.model.view import worker_node
from rota.scheduler.placement.filters import node_matches
from rota.testing.builders import apply, at, job_spec


def came(mirror: Mirror, address: str, worker_id: str) -> NodeId:
    node: NodeId = apply(mirror, register(mirror, Dialled(address, worker_id), at(0))).answer
    return node


def test_an_address_is_one_node_whatever_id_it_has() -> None:
    mirror = Mirror()
    first, again = came(mirror, "127.0.0.1:5", "a"), came(mirror, "127.0.0.1:5", "b")
    other, alike = came(mirror, "[::1]:5", "c"), came(mirror, "::1:5", "d")

    assert first == again
    assert len({first, other, alike}) == 3
    assert [mirror.nodes[node].spec.name for node in (first, other, alike)] == [
        "worker-127.0.0.1-5",
        "worker-1-5",
        "worker-1-5-2",
    ]
    assert worker_node(mirror, "a") is None
    assert registered(mirror)[first] == Dialled("127.0.0.1:5", "b")


def test_a_goodbye_is_answered_with_the_node_once() -> None:
    mirror = Mirror()
    node = came(mirror, "127.0.0.1:5", "a")

    assert deregister(mirror, "").answer is None
    assert apply(mirror, deregister(mirror, "a")).answer == node
    assert deregister(mirror, "a").answer is None
    assert registered(mirror) == {}


def test_there_are_only_so_many_workers() -> None:
    mirror = Mirror()
    for number in range(limits.WORKERS_MAX):
        worker = Dialled(f"h:{number}", str(number))
        mirror.apply(NodeSpec(NodeId(f"n{number}"), f"w{number}", dialled=worker))

    with pytest.raises(QueueFull, match="1000 workers"):
        register(mirror, Dialled("h:more", "x"), at(0))


def test_only_what_names_the_node_is_admitted_there() -> None:
    mirror = Mirror()
    entry = mirror.nodes[came(mirror, "127.0.0.1:5", "a")]
    assert entry.intent is not None
    said = ({"node": entry.spec.name, **entry.spec.labels}, entry.intent.taints)

    def admitted(**fields: Any) -> bool:
        return node_matches(job_spec(**fields).shape, *said)

    assert not admitted()
    assert not admitted(where=(Constraint("dialled", Op.EXISTS),))
    assert admitted(where=(Constraint("node", Op.EQUAL, (entry.spec.name,)),))
    assert admitted(tolerate=("dialled",))


def work(**fields: Any) -> TaskTemplate:
    return task_template(job_spec(**fields))


def test_a_command_is_one_line_and_the_path_is_the_working_directory_unless_another_is_meant() -> None:
    assert worker_command(work(command=("echo", "two words"))) == WorkerCommand("echo 'two words'", "")
    assert worker_command(work(command=("echo a; echo b",), workdir="/tmp")) == WorkerCommand(
        "echo a; echo b", "/tmp"
    )
    assert worker_command(work(command=("x",), env={PATH: "here"})) == WorkerCommand("x", "here")


def test_what_the_contract_cannot_carry_is_named() -> None:
    assert why_unsupported(work(env={PATH: "here"})) is None
    assert why_unsupported(work(env={"A": "b"}, run=RunMode.AT_MOST_ONCE, limits={"pids": 3})) == (
        "a worker that is dialled cannot give it run = at_most_once, limits, variables"
    )
