"""Orders and loads over the wire between server and agent, also across releases."""

import msgspec
import pytest

from rota.model.container import ContainerNetwork, ContainerSpec, MountSpec, PullPolicy, SandboxSpec
from rota.model.ids import JobId
from rota.model.messages import JobOrders, Start, Stop, TaskTemplate
from rota.model.node import DiskUsage, GpuUsage, NodeLoad
from rota.model.shape import RunMode
from rota.wire.agent import load_from_wire, load_to_wire, orders_from_wire, orders_to_wire
from rota.wire.generated import agent_pb2 as pb

WORK = TaskTemplate(
    "fit", ("true",), {"A": "b"}, None, {"cpu": 500, "gpu": 500}, 4, 10_000, None, RunMode.AT_LEAST_ONCE
)
JOB = JobId("7")


IN_CONTAINER = msgspec.structs.replace(
    WORK,
    container=ContainerSpec(
        "alpine:3.20",
        "1:2",
        ContainerNetwork.HOST,
        (MountSpec("/a", "/b", True), MountSpec("/c", "/d")),
        "/b",
        PullPolicy.MISSING,
    ),
)


IN_SANDBOX = msgspec.structs.replace(WORK, sandbox=SandboxSpec(True, ("/data",)))
SHAPES = [WORK, IN_CONTAINER, msgspec.structs.replace(WORK, container=ContainerSpec("a")), IN_SANDBOX]


def over_the_wire(orders: JobOrders) -> JobOrders:
    return orders_from_wire(pb.JobOrders.FromString(orders_to_wire(orders).SerializeToString()))


@pytest.mark.parametrize("work", SHAPES)
def test_a_template_arrives_with_its_container_or_sandbox(work: TaskTemplate) -> None:
    assert over_the_wire(JobOrders(JOB, work, [], [])).work == work


@pytest.mark.parametrize("gpus", [0, 1, 0b1010, 1 << 63, (1 << 64) - 1])
def test_orders_survive_the_wire(gpus: int) -> None:
    starts = [Start(0, 1, firm=True, gpus=gpus), Start(3, 2, firm=False), Start(4, 1, firm=True, gpus=0b1)]
    orders = JobOrders(JOB, WORK, starts, [Stop(1, 1)])

    assert over_the_wire(orders) == orders


def test_an_order_without_gpus_leaves_the_choice_to_the_node() -> None:
    before = pb.JobOrders(job="7", start_index=[0, 1], start_attempt=[1, 1], start_firm=[True, True])

    assert orders_from_wire(before).start == [Start(0, 1, firm=True), Start(1, 1, firm=True)]


def test_orders_without_gpus_leave_the_column_empty() -> None:
    sent = orders_to_wire(JobOrders(JOB, None, [Start(0, 1, firm=True), Start(1, 1, firm=False)], []))

    assert not sent.start_gpus


def test_a_load_survives_the_wire() -> None:
    gpus = (GpuUsage("A100", 37, 40 * 1024**3, None), GpuUsage("unknown"))
    load = NodeLoad(700, 5, None, 8, 1500, 10, 4, 3, (DiskUsage("/", 9, 2),), gpus)

    assert load_from_wire(load_to_wire(load)) == load
    assert load_from_wire(load_to_wire(NodeLoad())) == NodeLoad(), "as an older agent sends it"
