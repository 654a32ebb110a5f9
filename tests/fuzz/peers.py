"""Hostile peers with real credentials: odd messages of a node, a controller and a worker, in any order. [I/O]

The node has its own certificate, the controller a token of one namespace, and the worker registers at the
gateway. Whatever they send, the server survives, and so do honest nodes and the canary jobs on them, also
after a restart.
"""

import contextlib
import json
import queue
from collections.abc import Iterator
from concurrent import futures
from random import Random
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from rota.agent.dial import SERVER_NAME
from rota.agent.join import join
from rota.apiserver.routes import gateway
from rota.gateway.generated import jobscheduler_pb2
from rota.identity.tokens import JoinLine
from rota.model.messages import ReportedState
from rota.wire.generated import agent_pb2, controller_pb2
from tests.fuzz import jobs
from tests.fuzz.arena import HOSTILE, Arena, Outcomes
from tests.fuzz.messages import bend, is_garbled, mangled, odd_message
from tests.fuzz.odd import TEXTS, odd

AGENT = agent_pb2.DESCRIPTOR.services_by_name["Agent"]
CONTROLLER = controller_pb2.DESCRIPTOR.services_by_name["Controller"]
SCHEDULER = jobscheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"]
WORKER = jobscheduler_pb2.DESCRIPTOR.services_by_name["Worker"]
LABEL = "hostile"  # of the hostile node: only jobs that ask for it run there
# Parallel lists of numbers in a report of a node, one entry per attempt.
COLUMNS = [
    field.name
    for field in agent_pb2.JobClaims.DESCRIPTOR.fields
    if field.is_repeated and not field.message_type
]
_CALL_SECONDS = 2.0
_ORDERS_SECONDS = 0.3  # for which the hostile node waits for orders between two messages
_OURS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)  # internal errors of the server


def fuzz(arena: Arena, seed: int, rounds: int, outcomes: Outcomes) -> None:
    """Each round: a session and a call of the node, calls of the controller, and one of the worker."""
    rng = Random(seed)
    with contextlib.ExitStack() as opened:
        node = opened.enter_context(HostileNode(arena).opened())
        controller = opened.enter_context(grpc.insecure_channel(arena.cluster.grpc))
        worker = opened.enter_context(_hostile_worker(seed))
        for number in range(rounds):
            job = _work(arena, rng)
            node.session(rng, outcomes)
            node.call(rng, outcomes)
            for _ in range(4):
                _controller_call(arena, controller, rng, job, outcomes)
            _worker_call(controller, rng, worker, outcomes)
            _gateway_request(arena, rng, outcomes)
            if number % 20 == 19:
                arena.check()
                arena.clear()
    arena.check()


class HostileNode:
    """A node that joined like any other and sends anything."""

    def __init__(self, arena: Arena) -> None:
        directory = arena.cluster.directory / "hostile"
        directory.mkdir(mode=0o700, exist_ok=True)
        joined = join(JoinLine.parse(arena.cluster.join_line()), directory, "hostile", {LABEL: "yes"})
        pair = (joined.identity.key_pem, joined.identity.cert_pem)
        credentials = grpc.ssl_channel_credentials(joined.identity.ca_pem, *pair)
        options = [("grpc.ssl_target_name_override", SERVER_NAME)]
        self._channel = grpc.secure_channel(joined.agent_addresses[0], credentials, options)
        self._tasks = [("1", 0, 1)]  # job, index and attempt of every start that it was ordered

    @contextlib.contextmanager
    def opened(self) -> Iterator["HostileNode"]:
        with self._channel:
            yield self

    def session(self, rng: Random, outcomes: Outcomes) -> None:
        """Run one stream; it mostly starts with a plausible hello, so that later messages are processed."""
        orders: queue.SimpleQueue[agent_pb2.ToNode] = queue.SimpleQueue()
        sent: list[bytes] = []
        method = AGENT.methods_by_name["Connect"]
        call = _raw(self._channel, method)(self._messages(rng, orders, sent), timeout=_CALL_SECONDS)
        try:
            for answer in call:
                received = agent_pb2.ToNode.FromString(answer)
                orders.put(received)
                self._remember(received)
            outcomes.record("agent Connect", "ended")
        except grpc.RpcError as error:
            _record_error(outcomes, "agent Connect", error, method, sent)

    def call(self, rng: Random, outcomes: Outcomes) -> None:
        """One call of another method."""
        method = rng.choice([method for method in AGENT.methods if method.name != "Connect"])
        _call(self._channel, method, [self._odd(rng, method)], outcomes, "agent")

    def _messages(
        self, rng: Random, orders: "queue.SimpleQueue[agent_pb2.ToNode]", sent: list[bytes]
    ) -> Iterator[bytes]:
        """Messages of one stream; each is also appended to `sent`."""
        connect = AGENT.methods_by_name["Connect"]
        hello = _hello() if rng.random() < 0.5 else bend(rng, _hello(), self._texts())
        sent.append(hello.SerializeToString() if rng.random() < 0.9 else self._odd(rng, connect))
        yield sent[-1]
        for _ in range(rng.randrange(6)):
            with contextlib.suppress(queue.Empty):
                orders.get(timeout=_ORDERS_SECONDS if rng.random() < 0.5 else 0.01)
            sent.append(self._odd(rng, connect))
            yield sent[-1]

    def _odd(self, rng: Random, method: MethodDescriptor) -> bytes:
        kind = _class(method.input_type)
        if kind is agent_pb2.FromNode and rng.random() < 0.8:
            message: Message = bend(rng, self._plausible(rng), self._texts())
        else:
            message = odd_message(rng, kind, self._texts())
        return mangled(rng, message.SerializeToString())

    def _plausible(self, rng: Random) -> agent_pb2.FromNode:
        """A message that an honest node might send about its attempts."""
        n = rng.choice((1, 2, 3, 100))
        match rng.randrange(5):
            case 0:
                return _hello(*(self._reports(rng) for _ in range(rng.randrange(3))))
            case 1:
                return agent_pb2.FromNode(n=n, beat=agent_pb2.Beat(load=agent_pb2.Load(cpu_milli=10)))
            case 2:
                return agent_pb2.FromNode(
                    n=n, drain=agent_pb2.Drain(reason="moves", within_ms=1000, moves=True)
                )
            case _:
                return agent_pb2.FromNode(n=n, report=agent_pb2.Report(jobs=[self._reports(rng)]))

    def _reports(self, rng: Random) -> agent_pb2.JobClaims:
        job = rng.choice(self._tasks)[0]
        ours = [task for task in self._tasks if task[0] == job][-8:]
        reports = agent_pb2.JobClaims(job=job)
        for name in COLUMNS:
            getattr(reports, name).extend([0] * len(ours))
        reports.index[:] = [task[1] for task in ours]
        reports.attempt[:] = [task[2] for task in ours]
        reports.said[:] = [rng.choice(list(ReportedState)) for _ in ours]
        return reports

    def _remember(self, received: agent_pb2.ToNode) -> None:
        for orders in received.orders.jobs:
            pairs = zip(orders.start_index, orders.start_attempt, strict=True)
            self._tasks += [(orders.job, index, attempt) for index, attempt in pairs]
        del self._tasks[:-200]

    def _texts(self) -> list[str]:
        return [task[0] for task in self._tasks[-3:]] + ["stdout", "memory", "cpu", "gpu", "tasks", "leases"]


def _hello(*inventory: agent_pb2.JobClaims) -> agent_pb2.FromNode:
    hello = agent_pb2.Hello(
        machine_id="machine",
        boot_id="boot",
        version="1",
        protocol=1,
        capacity={"cpu": 4000, "memory": 2**30, "gpu": 2000},
        labels={LABEL: "yes", "leases": "yes"},
        inventory=inventory,
    )
    return agent_pb2.FromNode(n=1, hello=hello)


def _work(arena: Arena, rng: Random) -> str:
    """Submit a job for the hostile node or worker, so that it has attempts to report on."""
    where = rng.choice(([f"{LABEL} exists"], [f"{LABEL} exists"], ["number != 1", "number != 2"]))
    body = {"command": ["true"], "namespace": HOSTILE, "where": where, "count": rng.choice((1, 8))}
    kind = rng.choice(({}, {"kind": "service"}, {"gpu": 0.5}, {"run": "one_at_a_time"}, {"retries": 3}))
    answer = arena.call("POST", "/v1/jobs", body | kind)
    return str(answer.body["id"]) if answer.status == 201 else "1"


def _controller_call(arena: Arena, channel: grpc.Channel, rng: Random, job: str, outcomes: Outcomes) -> None:
    method = rng.choice(list(CONTROLLER.methods))
    kind = _class(method.input_type)
    specs = [json.dumps({**jobs.job(rng), "namespace": HOSTILE}), json.dumps(jobs.patch(rng)), "{}", "["]
    texts = [job, job, *specs, "0.0", "1.0", "stdout", "again", "KILL"]
    messages = [
        mangled(rng, odd_message(rng, kind, texts).SerializeToString()) for _ in range(rng.randrange(1, 4))
    ]
    _call(channel, method, messages, outcomes, "controller", authorization=f"Bearer {arena.hostile}")


def _worker_call(channel: grpc.Channel, rng: Random, port: int, outcomes: Outcomes) -> None:
    """Register or deregister a worker at a loopback address, valid or not."""
    method = rng.choice(list(SCHEDULER.methods))
    ports = rng.choice((port, port, 0, 1, 65_535, 65_536, -1, 10**30, "", "x"))
    addresses = [
        f"127.0.0.1:{ports}",
        f"localhost:{ports}",
        f"[::1]:{ports}",
        *(text for text in TEXTS if ":" not in text),
    ]
    message = _class(method.input_type)()
    for field in message.DESCRIPTOR.fields:
        setattr(message, field.name, rng.choice(addresses).encode("utf-8", "replace").decode())
    _call(channel, method, [mangled(rng, message.SerializeToString())], outcomes, "gateway")


def _gateway_request(arena: Arena, rng: Random, outcomes: Outcomes) -> None:
    """Send a request of the worker contract over HTTP, whose refusals are all 500."""
    path = rng.choice(gateway.PATHS)
    names = rng.sample(("worker_id", "command", "path", "job_id"), rng.randrange(5))
    answer = arena.call("POST", path, {name: odd(rng) for name in names})
    outcomes.record(f"gateway POST {path}", str(answer.status))


@contextlib.contextmanager
def _hostile_worker(seed: int) -> Iterator[int]:
    """A worker that answers every call of the gateway with odd messages."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    handlers = {method.name: _answering(method, Random(seed)) for method in WORKER.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(WORKER.full_name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(grace=None).wait()


def _answering(method: MethodDescriptor, rng: Random) -> Any:
    kind = _class(method.output_type)

    def answer(*_: object) -> bytes:
        return mangled(rng, odd_message(rng, kind).SerializeToString())

    def answers(*_: object) -> Iterator[bytes]:
        yield from (answer() for _ in range(3))

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(answers)
    return grpc.unary_unary_rpc_method_handler(answer)


def _call(
    channel: grpc.Channel,
    method: MethodDescriptor,
    messages: list[bytes],
    outcomes: Outcomes,
    peer: str,
    *,
    authorization: str = "",
) -> None:
    metadata = (("authorization", authorization),) if authorization else ()
    given: Any = iter(messages) if method.client_streaming else messages[0]
    kind = f"{peer} {method.name}"
    try:
        answer = _raw(channel, method)(given, timeout=_CALL_SECONDS, metadata=metadata)
        for number, _ in enumerate(answer if method.server_streaming else ()):
            if number >= 3:
                answer.cancel()
        outcomes.record(kind, "OK")
    except grpc.RpcError as error:
        _record_error(outcomes, kind, error, method, messages)


def _record_error(
    outcomes: Outcomes, kind: str, error: grpc.RpcError, method: MethodDescriptor, messages: list[bytes]
) -> None:
    code = error.code()
    outcomes.record(kind, code.name)
    if code in _OURS and not any(is_garbled(_class(method.input_type), data) for data in messages):
        sent = " ".join(data.hex()[:400] for data in messages)
        outcomes.add_problem(f"{kind}: {code.name} {error.details()!r:.100}", f"after {sent}")


def _raw(channel: grpc.Channel, method: MethodDescriptor) -> Any:
    """The method without serializers: it takes and returns bytes."""
    assert isinstance(method.containing_service, ServiceDescriptor)
    path = f"/{method.containing_service.full_name}/{method.name}"
    match method.client_streaming, method.server_streaming:
        case True, True:
            return channel.stream_stream(path)
        case True, False:
            return channel.stream_unary(path)
        case False, True:
            return channel.unary_stream(path)
        case _:
            return channel.unary_unary(path)


def _class(descriptor: Any) -> type[Message]:
    return message_factory.GetMessageClass(descriptor)
