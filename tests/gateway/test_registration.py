"""A worker's address is a node; jobs pinned to it are placed there, and unsupported fields are refused."""

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


def register_worker(mirror: Mirror, address: str, worker_id: str) -> NodeId:
    node: NodeId = apply(mirror, register(mirror, Dialled(address, worker_id), at(0))).answer
    return node


def test_an_address_is_one_node_whatever_id_it_has() -> None:
    mirror = Mirror()
    first, again = register_worker(mirror, "127.0.0.1:5", "a"), register_worker(mirror, "127.0.0.1:5", "b")
    other, similar = register_worker(mirror, "[::1]:5", "c"), register_worker(mirror, "::1:5", "d")

    assert first == again
    assert len({first, other, similar}) == 3
    assert [mirror.nodes[node].spec.name for node in (first, other, similar)] == [
        "worker-127.0.0.1-5",
        "worker-1-5",
        "worker-1-5-2",
    ]
    assert worker_node(mirror, "a") is None
    assert registered(mirror)[first] == Dialled("127.0.0.1:5", "b")


def test_a_deregistration_is_answered_with_the_node_once() -> None:
    mirror = Mirror()
    node = register_worker(mirror, "127.0.0.1:5", "a")

    assert deregister(mirror, "").answer is None
    assert apply(mirror, deregister(mirror, "a")).answer == node
    assert deregister(mirror, "a").answer is None
    assert registered(mirror) == {}


def test_the_number_of_workers_is_limited() -> None:
    mirror = Mirror()
    for number in range(limits.WORKERS_MAX):
        worker = Dialled(f"h:{number}", str(number))
        mirror.apply(NodeSpec(NodeId(f"n{number}"), f"w{number}", dialled=worker))

    with pytest.raises(QueueFull, match="1000 workers"):
        register(mirror, Dialled("h:more", "x"), at(0))


def test_only_jobs_that_name_the_node_or_tolerate_its_taint_are_placed_there() -> None:
    mirror = Mirror()
    entry = mirror.nodes[register_worker(mirror, "127.0.0.1:5", "a")]
    assert entry.intent is not None
    labels_and_taints = ({"node": entry.spec.name, **entry.spec.labels}, entry.intent.taints)

    def admitted(**fields: Any) -> bool:
        return node_matches(job_spec(**fields).shape, *labels_and_taints)

    assert not admitted()
    assert not admitted(where=(Constraint("dialled", Op.EXISTS),))
    assert admitted(where=(Constraint("node", Op.EQUAL, (entry.spec.name,)),))
    assert admitted(tolerate=("dialled",))


def template(**fields: Any) -> TaskTemplate:
    return task_template(job_spec(**fields))


def test_a_command_is_one_line_and_the_path_is_the_working_directory_by_default() -> None:
    assert worker_command(template(command=("echo", "two words"))) == WorkerCommand("echo 'two words'", "")
    assert worker_command(template(command=("echo a; echo b",), workdir="/tmp")) == WorkerCommand(
        "echo a; echo b", "/tmp"
    )
    assert worker_command(template(command=("x",), env={PATH: "here"})) == WorkerCommand("x", "here")


def test_fields_that_the_contract_does_not_support_are_named() -> None:
    assert why_unsupported(template(env={PATH: "here"})) is None
    assert why_unsupported(template(env={"A": "b"}, run=RunMode.AT_MOST_ONCE, limits={"pids": 3})) == (
        "a dialled worker does not support run = at_most_once, limits, variables"
    )
