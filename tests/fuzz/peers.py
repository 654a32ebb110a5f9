"""Hostile peers with real credentials: odd words of a node, a controller and a worker, in odd orders. [I/O]

The node has a certificate of its own, the controller a token of one namespace, the worker registers at the
gateway. Whatever they say, the server stays, and so do honest nodes and the canary jobs on them; also after a
restart.
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
# Of a node's claims: parallel lists of numbers, one entry for each attempt.
COLUMNS = [
    one.name for one in agent_pb2.JobClaims.DESCRIPTOR.fields if one.is_repeated and not one.message_type
]
_CALL_SECONDS = 2.0
_HEAR_SECONDS = 0.3  # the hostile node waits so long for orders between two words
_OURS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)  # an error of the server's own


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
    """A node that joined like any other, and says anything."""

    def __init__(self, arena: Arena) -> None:
        directory = arena.cluster.directory / "hostile"
        directory.mkdir(mode=0o700, exist_ok=True)
        joined = join(JoinLine.parse(arena.cluster.join_line()), directory, "hostile", {LABEL: "yes"})
        pair = (joined.identity.key_pem, joined.identity.cert_pem)
        credentials = grpc.ssl_channel_credentials(joined.identity.ca_pem, *pair)
        options = [("grpc.ssl_target_name_override", SERVER_NAME)]
        self._channel = grpc.secure_channel(joined.agent_addresses[0], credentials, options)
        self._tasks = [("1", 0, 1)]  # job, index and attempt: what it was ever told to start

    @contextlib.contextmanager
    def opened(self) -> Iterator["HostileNode"]:
        with self._channel:
            yield self

    def session(self, rng: Random, outcomes: Outcomes) -> None:
        """One stream: most often it begins with a plausible hello, so that the words behind it are heard."""
        orders: queue.SimpleQueue[agent_pb2.ToNode] = queue.SimpleQueue()
        said: list[bytes] = []
        method = AGENT.methods_by_name["Connect"]
        call = _raw(self._channel, method)(self._words(rng, orders, said), timeout=_CALL_SECONDS)
        try:
            for answer in call:
                heard = agent_pb2.ToNode.FromString(answer)
                orders.put(heard)
                self._learn(heard)
            outcomes.note("agent Connect", "ended")
        except grpc.RpcError as error:
            _note(outcomes, "agent Connect", error, method, said)

    def call(self, rng: Random, outcomes: Outcomes) -> None:
        """One call of another method."""
        method = rng.choice([one for one in AGENT.methods if one.name != "Connect"])
        _call(self._channel, method, [self._odd(rng, method)], outcomes, "agent")

    def _words(
        self, rng: Random, orders: "queue.SimpleQueue[agent_pb2.ToNode]", said: list[bytes]
    ) -> Iterator[bytes]:
        """What it says, which is noted in `said` as well."""
        connect = AGENT.methods_by_name["Connect"]
        hello = _hello() if rng.random() < 0.5 else bend(rng, _hello(), self._texts())
        said.append(hello.SerializeToString() if rng.random() < 0.9 else self._odd(rng, connect))
        yield said[-1]
        for _ in range(rng.randrange(6)):
            with contextlib.suppress(queue.Empty):
                orders.get(timeout=_HEAR_SECONDS if rng.random() < 0.5 else 0.01)
            said.append(self._odd(rng, connect))
            yield said[-1]

    def _odd(self, rng: Random, method: MethodDescriptor) -> bytes:
        kind = _class(method.input_type)
        if kind is agent_pb2.FromNode and rng.random() < 0.8:
            said: Message = bend(rng, self._plausible(rng), self._texts())
        else:
            said = odd_message(rng, kind, self._texts())
        return mangled(rng, said.SerializeToString())

    def _plausible(self, rng: Random) -> agent_pb2.FromNode:
        """A word that an honest node might say of what it was told to start."""
        n = rng.choice((1, 2, 3, 100))
        match rng.randrange(5):
            case 0:
                return _hello(*(self._claims(rng) for _ in range(rng.randrange(3))))
            case 1:
                return agent_pb2.FromNode(n=n, beat=agent_pb2.Beat(load=agent_pb2.Load(cpu_milli=10)))
            case 2:
                return agent_pb2.FromNode(
                    n=n, drain=agent_pb2.Drain(reason="moves", within_ms=1000, moves=True)
                )
            case _:
                return agent_pb2.FromNode(n=n, report=agent_pb2.Report(jobs=[self._claims(rng)]))

    def _claims(self, rng: Random) -> agent_pb2.JobClaims:
        job = rng.choice(self._tasks)[0]
        ours = [task for task in self._tasks if task[0] == job][-8:]
        claims = agent_pb2.JobClaims(job=job)
        for name in COLUMNS:
            getattr(claims, name).extend([0] * len(ours))
        claims.index[:] = [task[1] for task in ours]
        claims.attempt[:] = [task[2] for task in ours]
        claims.said[:] = [rng.choice(list(ReportedState)) for _ in ours]
        return claims

    def _learn(self, heard: agent_pb2.ToNode) -> None:
        for one in heard.orders.jobs:
            pairs = zip(one.start_index, one.start_attempt, strict=True)
            self._tasks += [(one.job, index, attempt) for index, attempt in pairs]
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
    """A job for the hostile node or worker, so that it has something to speak of."""
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
    said = [
        mangled(rng, odd_message(rng, kind, texts).SerializeToString()) for _ in range(rng.randrange(1, 4))
    ]
    _call(channel, method, said, outcomes, "controller", authorization=f"Bearer {arena.hostile}")


def _worker_call(channel: grpc.Channel, rng: Random, port: int, outcomes: Outcomes) -> None:
    """Register a worker at a loopback address, possible or not; or say goodbye for one."""
    method = rng.choice(list(SCHEDULER.methods))
    ports = rng.choice((port, port, 0, 1, 65_535, 65_536, -1, 10**30, "", "x"))
    addresses = [
        f"127.0.0.1:{ports}",
        f"localhost:{ports}",
        f"[::1]:{ports}",
        *(one for one in TEXTS if ":" not in one),
    ]
    message = _class(method.input_type)()
    for field in message.DESCRIPTOR.fields:
        setattr(message, field.name, rng.choice(addresses).encode("utf-8", "replace").decode())
    _call(channel, method, [mangled(rng, message.SerializeToString())], outcomes, "gateway")


def _gateway_request(arena: Arena, rng: Random, outcomes: Outcomes) -> None:
    """The HTTP side of the worker contract, in which every refusal is a 500."""
    path = rng.choice(gateway.PATHS)
    names = rng.sample(("worker_id", "command", "path", "job_id"), rng.randrange(5))
    answer = arena.call("POST", path, {name: odd(rng) for name in names})
    outcomes.note(f"gateway POST {path}", str(answer.status))


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
    said: list[bytes],
    outcomes: Outcomes,
    who: str,
    *,
    authorization: str = "",
) -> None:
    metadata = (("authorization", authorization),) if authorization else ()
    given: Any = iter(said) if method.client_streaming else said[0]
    kind = f"{who} {method.name}"
    try:
        answer = _raw(channel, method)(given, timeout=_CALL_SECONDS, metadata=metadata)
        for number, _ in enumerate(answer if method.server_streaming else ()):
            if number >= 3:
                answer.cancel()
        outcomes.note(kind, "OK")
    except grpc.RpcError as error:
        _note(outcomes, kind, error, method, said)


def _note(
    outcomes: Outcomes, kind: str, error: grpc.RpcError, method: MethodDescriptor, said: list[bytes]
) -> None:
    code = error.code()
    outcomes.note(kind, code.name)
    if code in _OURS and not any(is_garbled(_class(method.input_type), one) for one in said):
        sent = " ".join(one.hex()[:400] for one in said)
        outcomes.blame(f"{kind}: {code.name} {error.details()!r:.100}", f"after {sent}")


def _raw(channel: grpc.Channel, method: MethodDescriptor) -> Any:
    """The call without serializers: what is sent are bytes."""
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
