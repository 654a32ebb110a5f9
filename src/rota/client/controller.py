"""Client of controller.proto for an external controller; reconnects by itself and resumes its streams.

Unlike the rest of the package this module needs gRPC. Every call may be retried: calls that would act twice
carry an idempotency key, and a stream that resumes tells the server what was already received.
"""

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

CALL_SECONDS = 30.0  # per call, including the time in which a server restarts
BACKOFF_SECONDS = (0.1, 2.0)  # first and longest, before a stream is opened again
_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),  # detects a dead connection
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
]
_SERVER_NAME = "rota-server"  # in the certificate of every server
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
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
    """An external controller, identified by its token and name. Answers are messages of controller.proto."""

    def __init__(self, address: str, token: str, name: str, ca_pem: bytes | None = None) -> None:
        """`address` may be a list of servers, separated by commas."""
        self.name = name
        self._channel = _channel(address, ca_pem)
        self._stub: Any = ControllerStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._metadata = (("authorization", f"Bearer {token}"),)

    @classmethod
    def connect(cls, name: str, context: str | None = None) -> Self:
        """Connect to the server that the command line would use."""
        endpoint = resolve(context=context)
        with connect(context=context) as cluster:
            status = cluster.server.status().raw
            address = ",".join(status.get("controller_addresses") or [status["controller_address"]])
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
        """Submit a job and return its id; a repeated call with the same key returns the same job."""
        stages = self.schedule(spec, key)
        job = next(stages).job
        stages.close()
        return str(job)

    def schedule(
        self, spec: Mapping[str, Any], key: str, *, logs: bool = False
    ) -> Generator[pb.Stage, None, None]:
        """Submit a job and yield each of its stages and task events once, until it has ended.

        With `logs` the output of its tasks is yielded, too.
        """
        position, body = _StreamPosition(), json.dumps(dict(spec))

        def call() -> Any:
            request = pb.ScheduleRequest(
                spec_json=body, idempotency_key=key, logs=logs, heard=position.to_message()
            )
            # The same request each time: the key finds the job that was created, and
            # `heard` says what was received.
            return self._stub.Schedule(request, metadata=self._metadata, wait_for_ready=True)

        for stage in _resumed(call):
            position.record(stage)
            yield stage
            if stage.stage.final:
                return

    def events(self, after: str = "") -> Iterator[pb.Event]:
        """Events, each once and in order, after `after` or the last one acknowledged under this name."""

        def call() -> Any:
            request = pb.WatchRequest(subscriber=self.name, after=after)
            return self._stub.Watch(request, metadata=self._metadata, wait_for_ready=True)

        for batch in _resumed(call):
            for event in batch.events:
                # Before the caller gets the event: a stream that breaks meanwhile resumes
                # after it and sends it only once.
                after = event.sequence
                yield event

    def statistics(self, interval_ms: int) -> Iterator[pb.Summary]:
        """Queue and node statistics, now and then at this interval, in parts."""

        def call() -> Any:
            request = pb.WatchRequest(statistics_interval_ms=interval_ms)
            return self._stub.Watch(request, metadata=self._metadata, wait_for_ready=True)

        for batch in _resumed(call):
            if batch.HasField("summary"):
                yield batch.summary

    def acknowledge(self, sequence: str) -> None:
        """Acknowledge all events up to this one; a new stream under this name starts after it."""
        self._call("Acknowledge", pb.AcknowledgeRequest(subscriber=self.name, sequence=sequence))

    def resolve(self, event: pb.Event, word: str) -> None:
        """Decide on the lost tasks of an event `task.unresolved`: again, fail, cancel or lost."""
        request = pb.ResolveRequest(
            subscriber=self.name,
            job=event.job,
            first_index=event.first_index,
            last_index=event.last_index,
            attempt=event.attempt,
            word=word,
        )
        self._call("Resolve", request)

    def stop(self, job: str, reason: str = "") -> str:
        """Cancel a job. Returns its state."""
        return str(self._call("Stop", pb.StopRequest(job=job, reason=reason)).state)

    def pause(self, job: str, *, stop: bool = False) -> str:
        """Start no more tasks of the job; with `stop` running tasks are stopped, too. Returns its state."""
        return str(self._call("Pause", pb.PauseRequest(job=job, stop=stop, idempotency_key=new_key())).state)

    def resume(self, job: str) -> str:
        """Resume a paused job. Returns its state."""
        return str(self._call("Resume", pb.ResumeRequest(job=job, idempotency_key=new_key())).state)

    def restart(self, job: str, *indices: int) -> str:
        """Stop these tasks, or all running ones, and start them again. Returns the state of the job."""
        request = pb.RestartRequest(job=job, indices=indices, idempotency_key=new_key())
        return str(self._call("Restart", request).state)

    def move(self, job: str, *indices: int, to: str = "") -> str:
        """Stop these tasks, or all that are on a node, and start them on node `to`, or on any other node.

        Returns the state of the job. Raises Conflict, with the reasons, if they do not fit there now.
        """
        request = pb.MoveRequest(job=job, indices=indices, to=to, idempotency_key=new_key())
        return str(self._call("Move", request).state)

    def drain(self, node: str, *, deadline_seconds: float | None = None, force: bool = False) -> str:
        """Place no new tasks on a node; at the deadline the others move. Returns its eligibility."""
        request = pb.DrainRequest(node=node, force=force)
        if deadline_seconds is not None:
            request.deadline_ms = round(deadline_seconds * 1000)
        return str(self._call("Drain", request).eligibility)

    def plan(self, spec: Mapping[str, Any]) -> pb.PlanReply:
        """Where and when a job would start if it were submitted now; submits nothing."""
        reply: pb.PlanReply = self._call("Plan", pb.PlanRequest(spec_json=json.dumps(dict(spec))))
        return reply

    def delete(self, job: str) -> None:
        """Delete an ended job."""
        self._call("Delete", pb.DeleteRequest(job=job))

    def state(self) -> Sequence[pb.StatePage]:
        """Nodes, queue and jobs; the first page has the sequence number from which to watch."""

        def read() -> list[pb.StatePage]:
            pages = self._stub.State(
                pb.StateRequest(), metadata=self._metadata, timeout=CALL_SECONDS, wait_for_ready=True
            )
            return list(pages)

        pages: list[pb.StatePage] = _with_retries(read)
        return pages

    def set_pace(self, least_ms: int, most_ms: int) -> None:
        """Set the minimum and maximum interval of the load reports of nodes."""
        self._call("SetPace", pb.SetPaceRequest(least_ms=least_ms, most_ms=most_ms))

    def _call(self, method: str, request: Any) -> Any:
        """Make a call, retried if the server becomes unreachable before it answers."""
        stub_method = getattr(self._stub, method)
        return _with_retries(
            lambda: stub_method(request, metadata=self._metadata, timeout=CALL_SECONDS, wait_for_ready=True)
        )


class _StreamPosition:
    """How far the stream of a job has been received."""

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
                # A gap counts as received: otherwise it would be reported again at every reconnect.
                end = part.offset + part.missing + len(part.data)
                self._logs[part.index, part.stream] = (part.attempt, end)
            case _:
                pass

    def to_message(self) -> pb.Heard:
        logs = [
            pb.LogPosition(index=index, stream=stream, attempt=attempt, offset=offset)
            for (index, stream), (attempt, offset) in self._logs.items()
        ]
        return pb.Heard(sequence=self._sequence, logs=logs)


def _resumed(call: Callable[[], Any]) -> Iterator[Any]:
    """The messages of a stream, opened again whenever the server becomes unreachable."""
    backoff_seconds = BACKOFF_SECONDS[0]
    while True:
        stream = call()
        try:
            for message in stream:
                backoff_seconds = BACKOFF_SECONDS[0]
                yield message
            return
        except grpc.RpcError as error:
            # CANCELLED included: a server that shuts down or loses leadership cancels its streams.
            if error.code() not in _UNREACHABLE:
                raise _to_rota_error(error) from None
        finally:
            # Also when the caller stops reading: otherwise the server would keep sending
            # until the channel is closed.
            stream.cancel()
        time.sleep(random.uniform(0.5, 1.0) * backoff_seconds)
        backoff_seconds = min(BACKOFF_SECONDS[1], 2 * backoff_seconds)


def _with_retries(call: Callable[[], Any]) -> Any:
    # Bounded in total, not per try: the caller waits for one answer, however many servers are tried for it.
    until = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() not in _UNREACHABLE or time.monotonic() > until:
                raise _to_rota_error(error) from None
        time.sleep(BACKOFF_SECONDS[0])


def _to_rota_error(error: Any) -> RotaError:
    metadata = {pair.key: pair.value for pair in error.trailing_metadata() or ()}
    kind = _KINDS.get(error.code(), Rejected)
    code = str(metadata.get("rota-code") or "unavailable")
    return kind(code, error.details() or error.code().name, field=metadata.get("rota-field"))


def _channel(address: str, ca_pem: bytes | None) -> grpc.Channel:
    """A gRPC channel; unencrypted only on loopback, where the server has no certificate."""
    addresses = address.split(",")
    host = addresses[0].rpartition(":")[0].strip("[]")
    target = addresses[0] if len(addresses) == 1 else f"ipv4:{','.join(map(_resolved, addresses))}"
    if ca_pem is None and is_loopback(host):
        return grpc.insecure_channel(target, _OPTIONS)
    options = [] if len(addresses) == 1 else [("grpc.ssl_target_name_override", _SERVER_NAME)]
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(ca_pem), [*_OPTIONS, *options])


def _resolved(address: str) -> str:
    """The address with its host as a number: gRPC takes a list of addresses only in this form."""
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise Unavailable("unavailable", f"cannot resolve {host}: {error.strerror}") from None
