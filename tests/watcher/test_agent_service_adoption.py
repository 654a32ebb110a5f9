"""A node connects to a server started without records: it is welcomed once its jobs are adopted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import grpc
import pytest

from rota.engine.run import Engine
from rota.identity.authority import CertificateAuthority
from rota.identity.seals import Seals
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.messages import Hello, ReportedState
from rota.model.node import NodeSpec
from rota.model.plan import Plan
from rota.store.memory import MemoryStore
from rota.testing.builders import hello, job_reports, job_spec
from rota.watcher import liveness
from rota.watcher.agent_service import AgentService
from rota.watcher.leadership import LeadershipContext
from rota.wire import agent as wire
from rota.wire.generated import agent_pb2 as pb
from rota.wiring.sealed_specs import SealedSpecStore
from tests.engine.driving import running
from tests.watcher.test_agent_service import PLACES_NOTHING

A, B = NodeId("a"), NodeId("b")
SPECS = SealedSpecStore(Seals(lambda: [b"of this cluster"]))
SPEC = job_spec(7, count=2, namespace="films", user="ann")
HAS = hello("a", [job_reports(7, ReportedState.RUNNING, (1, 1))])


class CallAborted(Exception):
    """The server has aborted the call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Node:
    """Says hello, answers what it is asked for, and then reads."""

    def __init__(self, message: Hello, *answers: pb.Resubmission, protocol: int = wire.PROTOCOL) -> None:
        self.received: list[pb.ToNode] = []
        self._hello = wire.hello_to_wire(message)
        self._hello.protocol = protocol
        self._answers = answers
        self._asked = asyncio.Event()
        self.welcomed, self.ordered = asyncio.Event(), asyncio.Event()

    async def messages(self) -> AsyncIterator[pb.FromNode]:
        yield pb.FromNode(n=1, hello=self._hello)
        if self._answers:
            await self._asked.wait()
        for n, answer in enumerate(self._answers, 2):
            yield pb.FromNode(n=n, resubmission=answer)
        await asyncio.Event().wait()

    async def write(self, message: pb.ToNode) -> None:
        self.received.append(message)
        if message.HasField("resubmit"):
            self._asked.set()
        if message.HasField("welcome"):
            self.welcomed.set()
        if message.HasField("orders"):
            self.ordered.set()

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        raise CallAborted(code, details)

    @property
    def asked_for(self) -> list[str]:
        return [job for message in self.received for job in message.resubmit.jobs]


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[Engine, AgentService]]:
    async with running(MemoryStore(directory), liveness.reconciler(), PLACES_NOTHING) as engine:
        service = AgentService(
            engine, cast(CertificateAuthority, None), leadership=LeadershipContext(specs=SPECS)
        )
        for node in (A, B):
            await engine.ask("apiserver", lambda *_, node=node: Plan((NodeSpec(node, node),)))
        yield engine, service


@asynccontextmanager
async def calling(service: AgentService, node: Node) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(service.sessions.serve_session(A, node.messages(), node))  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await node.welcomed.wait()
        yield
        call.cancel()


def brings(spec: JobSpec = SPEC, node: NodeId = A, record: bytes | None = None) -> pb.Resubmission:
    return pb.Resubmission(job=spec.id, record=SPECS.seal(node, spec) if record is None else record)


def assigned(engine: Engine) -> dict[tuple[JobId, int], int]:
    return dict(engine.mirror.nodes[A].assigned)


async def test_a_job_is_requested_and_adopted_before_the_node_is_welcomed(tmp_path: Path) -> None:
    node = Node(HAS, brings())
    async with serving(tmp_path) as (engine, service), calling(service, node):
        kinds = [message.WhichOneof("word") for message in node.received]

        assert (node.asked_for, kinds[:2]) == (["7"], ["resubmit", "welcome"])
        assert engine.mirror.jobs[JobId("7")].spec == SPEC
        assert assigned(engine) == {(JobId("7"), 1): 1}
        assert not any(order.stop_index for message in node.received for order in message.orders.jobs)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(brings(node=B), id="sealed for another node"),
        pytest.param(brings(record=SPECS.seal(A, job_spec(8, namespace="films"))), id="of another job"),
        pytest.param(
            brings(record=SealedSpecStore(Seals(lambda: [b"elsewhere"])).seal(A, SPEC)),
            id="of another cluster",
        ),
        pytest.param(brings(record=SPECS.seal(A, SPEC)[:-1]), id="cut short"),
        pytest.param(brings(record=b""), id="nothing"),
    ],
)
async def test_a_spec_not_sealed_for_the_node_is_not_adopted(tmp_path: Path, answer: pb.Resubmission) -> None:
    node = Node(HAS, answer)
    async with serving(tmp_path) as (engine, service), calling(service, node):
        assert node.asked_for == ["7"]
        assert not engine.mirror.jobs
        assert assigned(engine) == {}


@pytest.mark.parametrize(
    "answer", [pb.Resubmission(job="9"), pb.Resubmission(job="7", record=b"x" * (5 << 20))]
)
async def test_a_node_that_answers_with_another_job_is_disconnected(
    tmp_path: Path, answer: pb.Resubmission
) -> None:
    node = Node(HAS, answer)
    async with serving(tmp_path) as (engine, service):
        with pytest.raises(CallAborted) as aborted:
            await service.sessions.serve_session(A, node.messages(), node)  # type: ignore[arg-type]

        assert aborted.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert not engine.mirror.jobs


async def test_an_older_agent_is_not_asked_and_its_work_is_stopped(tmp_path: Path) -> None:
    node = Node(HAS, protocol=1)
    async with serving(tmp_path) as (engine, service), calling(service, node):
        await node.ordered.wait()
        stops = [
            index for message in node.received for order in message.orders.jobs for index in order.stop_index
        ]

        assert (node.asked_for, stops) == ([], [1])
        assert not engine.mirror.jobs
