"""An outside controller's side of controller.proto: it reconnects by itself and goes on where it stopped."""

import json
import random
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Self

import grpc

from rota.client.cluster import connect
from rota.client.context import resolve
from rota.client.errors import Broken, Conflict, NotAllowed, NotFound, Rejected, RotaError, Unavailable
from rota.client.transport import new_key
from rota.model.names import is_loopback
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated.controller_pb2_grpc import ControllerStub

CALL_SECONDS = 30.0  # for an answer, also while the server is started again
PAUSE_SECONDS = (0.1, 2.0)  # before a stream is opened again: the first, the longest
_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),  # a connection that died in silence is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
]
_SERVER_NAME = "rota-server"  # which every server's certificate bears
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_KINDS: Mapping[grpc.StatusCode, type[RotaError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
    grpc.StatusCode.INTERNAL: Broken,
}


class Controller:
    """Known to the server by its token and its name. Answers are the messages of controller.proto."""

    def __init__(self, address: str, token: str, name: str, ca_pem: bytes | None = None) -> None:
        """Of several servers the addresses with commas between."""
        self.name = name
        self._channel = _channel(address, ca_pem)
        self._stub: Any = ControllerStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._said = (("authorization", f"Bearer {token}"),)

    @classmethod
    def connect(cls, name: str, context: str | None = None) -> Self:
        """To the server that the command line would talk to."""
        endpoint = resolve(context=context)
        with connect(context=context) as cluster:
            said = cluster.server().raw
            address = ",".join(said.get("controller_addresses") or [said["controller_address"]])
        ca_pem = None
        if endpoint.ca is not None:
            with open(endpoint.ca, "rb") as file:
                ca_pem = file.read()
        return cls(address, endpoint.token, name, ca_pem)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def submit(self, spec: Mapping[str, Any], key: str) -> str:
        """The id of the job: of the same one, however often it is said with this key."""
        stages = self.schedule(spec, key)
        job = next(stages).job
        stages.close()
        return str(job)

    def schedule(
        self, spec: Mapping[str, Any], key: str, *, logs: bool = False
    ) -> Generator[pb.Stage, None, None]:
        """Every stage and event of its tasks once, and with `logs` every byte, until the final stage."""
        heard, body = _StreamPosition(), json.dumps(dict(spec))

        def call() -> Any:
            wanted = pb.ScheduleRequest(spec_json=body, idempotency_key=key, logs=logs, heard=heard.said())
            return self._stub.Schedule(wanted, metadata=self._said, wait_for_ready=True)

        for stage in _resumed(call):
            heard.record(stage)
            yield stage
            if stage.stage.final:
                return

    def events(self, after: str = "") -> Iterator[pb.Event]:
        """What happens, each once and in order, behind `after` or what was acknowledged under this name."""

        def call() -> Any:
            wanted = pb.WatchRequest(subscriber=self.name, after=after)
            return self._stub.Watch(wanted, metadata=self._said, wait_for_ready=True)

        for batch in _resumed(call):
            for event in batch.events:
                after = event.sequence
                yield event

    def statistics(self, interval_ms: int) -> Iterator[pb.Summary]:
        """The queue and the statistics of nodes, at once and then at this interval, in parts."""

        def call() -> Any:
            wanted = pb.WatchRequest(statistics_interval_ms=interval_ms)
            return self._stub.Watch(wanted, metadata=self._said, wait_for_ready=True)

        for batch in _resumed(call):
            if batch.HasField("summary"):
                yield batch.summary

    def acknowledge(self, sequence: str) -> None:
        """Everything up to this event was dealt with."""
        self._ask("Acknowledge", pb.AcknowledgeRequest(subscriber=self.name, sequence=sequence))

    def resolve(self, event: pb.Event, word: str) -> None:
        """What becomes of the tasks that an event `task.unresolved` names: again, fail, cancel or lost."""
        wanted = pb.ResolveRequest(
            subscriber=self.name,
            job=event.job,
            first_index=event.first_index,
            last_index=event.last_index,
            attempt=event.attempt,
            word=word,
        )
        self._ask("Resolve", wanted)

    def stop(self, job: str, reason: str = "") -> str:
        """The state of the job since."""
        return str(self._ask("Stop", pb.StopRequest(job=job, reason=reason)).state)

    def pause(self, job: str, *, stop: bool = False) -> str:
        """Start nothing new of the job; with `stop` its running tasks are stopped, too. Returns its state."""
        return str(self._ask("Pause", pb.PauseRequest(job=job, stop=stop, idempotency_key=new_key())).state)

    def resume(self, job: str) -> str:
        """Let a paused job go on. Returns its state."""
        return str(self._ask("Resume", pb.ResumeRequest(job=job, idempotency_key=new_key())).state)

    def restart(self, job: str, *indices: int) -> str:
        """Stop these tasks, or all that run, and try them again. Returns the job's state."""
        wanted = pb.RestartRequest(job=job, indices=indices, idempotency_key=new_key())
        return str(self._ask("Restart", wanted).state)

    def move(self, job: str, *indices: int, to: str = "") -> str:
        """Stop these tasks, or all on a node, and start them on node `to`, or on any but their own.

        Returns the job's state. Conflict when there is no room for them there now, with the reasons.
        """
        wanted = pb.MoveRequest(job=job, indices=indices, to=to, idempotency_key=new_key())
        return str(self._ask("Move", wanted).state)

    def drain(self, node: str, *, deadline_seconds: float | None = None, force: bool = False) -> str:
        """Give a node no new tasks, and move what still runs at the deadline. Returns its eligibility."""
        wanted = pb.DrainRequest(node=node, force=force)
        if deadline_seconds is not None:
            wanted.deadline_ms = round(deadline_seconds * 1000)
        return str(self._ask("Drain", wanted).eligibility)

    def plan(self, spec: Mapping[str, Any]) -> pb.PlanReply:
        """What would become of a job if it were submitted now; nothing is written."""
        reply: pb.PlanReply = self._ask("Plan", pb.PlanRequest(spec_json=json.dumps(dict(spec))))
        return reply

    def delete(self, job: str) -> None:
        self._ask("Delete", pb.DeleteRequest(job=job))

    def state(self) -> Sequence[pb.StatePage]:
        """Nodes, queue and jobs; the first page tells the sequence number from which to watch."""

        def read() -> list[pb.StatePage]:
            pages = self._stub.State(
                pb.StateRequest(), metadata=self._said, timeout=CALL_SECONDS, wait_for_ready=True
            )
            return list(pages)

        pages: list[pb.StatePage] = _answered(read)
        return pages

    def set_pace(self, least_ms: int, most_ms: int) -> None:
        self._ask("SetPace", pb.SetPaceRequest(least_ms=least_ms, most_ms=most_ms))

    def _ask(self, method: str, request: Any) -> Any:
        """Said again when the server went away before it answered: every call may be repeated."""
        call = getattr(self._stub, method)
        return _answered(
            lambda: call(request, metadata=self._said, timeout=CALL_SECONDS, wait_for_ready=True)
        )


class _StreamPosition:
    """How far a job's stream was heard."""

    def __init__(self) -> None:
        self._sequence = ""
        self._logs: dict[tuple[int, str], tuple[int, int]] = {}

    def record(self, stage: pb.Stage) -> None:
        match stage.WhichOneof("what"):
            case "task":
                self._sequence = stage.task.sequence
            case "stage":
                self._sequence = stage.stage.sequence or self._sequence
            case "log":
                part = stage.log
                end = part.offset + part.missing + len(part.data)
                self._logs[part.index, part.stream] = (part.attempt, end)
            case _:
                pass

    def said(self) -> pb.Heard:
        logs = [
            pb.LogPosition(index=index, stream=stream, attempt=attempt, offset=offset)
            for (index, stream), (attempt, offset) in self._logs.items()
        ]
        return pb.Heard(sequence=self._sequence, logs=logs)


def _resumed(call: Callable[[], Any]) -> Iterator[Any]:
    """All that a stream says; one that broke because the server went away is opened again."""
    pause_seconds = PAUSE_SECONDS[0]
    while True:
        stream = call()
        try:
            for said in stream:
                pause_seconds = PAUSE_SECONDS[0]
                yield said
            return
        except grpc.RpcError as error:
            if error.code() not in _AWAY:
                raise _told(error) from None
        finally:
            stream.cancel()
        time.sleep(random.uniform(0.5, 1.0) * pause_seconds)
        pause_seconds = min(PAUSE_SECONDS[1], 2 * pause_seconds)


def _answered(call: Callable[[], Any]) -> Any:
    until = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() not in _AWAY or time.monotonic() > until:
                raise _told(error) from None
        time.sleep(PAUSE_SECONDS[0])


def _told(error: Any) -> RotaError:
    said = {pair.key: pair.value for pair in error.trailing_metadata() or ()}
    kind = _KINDS.get(error.code(), Rejected)
    code = str(said.get("rota-code") or "unavailable")
    return kind(code, error.details() or error.code().name, field=said.get("rota-field"))


def _channel(address: str, ca_pem: bytes | None) -> grpc.Channel:
    """Plain text on loopback only, where the server has no certificate for it."""
    several = address.split(",")
    host = several[0].rpartition(":")[0].strip("[]")
    target = several[0] if len(several) == 1 else f"ipv4:{','.join(map(_resolved, several))}"
    if ca_pem is None and is_loopback(host):
        return grpc.insecure_channel(target, _OPTIONS)
    named = [] if len(several) == 1 else [("grpc.ssl_target_name_override", _SERVER_NAME)]
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(ca_pem), [*_OPTIONS, *named])


def _resolved(address: str) -> str:
    """gRPC takes several addresses as numbers only; those that nobody listens at it passes over."""
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise Unavailable("unavailable", f"{host} is not known: {error.strerror}") from None
