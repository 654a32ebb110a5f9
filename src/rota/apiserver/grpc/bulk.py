"""BulkStream: many submits and stops on one gRPC stream, answered by id and in any order. [I/O]

Backpressure: at most UNANSWERED_MAX requests are in progress, and none is read faster than the rate limit of
the token allows. Nothing is refused for its rate, so that a client may simply write.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rota.apiserver.access import Caller
from rota.apiserver.admission import actions, submission
from rota.apiserver.admission.actions import AdmitAction
from rota.apiserver.api import Api
from rota.apiserver.authentication import Unauthenticated, require_valid_token
from rota.apiserver.grpc.job_push import JobPush
from rota.apiserver.spec.fields import decode_json
from rota.apiserver.spec.recovery import default_controller, with_named_controller
from rota.apiserver.views import jobs
from rota.engine.meter import metered
from rota.model.errors import BadField, QueueFull, Rejected, RotaError
from rota.model.ids import JobId
from rota.model.limits import BODY_BYTES_MAX
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.wire import bounds
from rota.wire.controller import refusal_to_wire
from rota.wire.generated import controller_pb2 as pb

UNANSWERED_MAX = 256  # requests of one stream; the next is read when one of them is answered
FOLLOWED_MAX = 1_000  # jobs of one stream whose stages are sent
ID_LENGTH_MAX = 256  # sent back with every reply

Write = Callable[[pb.BulkReply], Awaitable[None]]
Audit = Callable[[str, str, str], None]  # action, target, outcome: for the audit log


@dataclass(slots=True)
class BulkStream:
    """One stream of one caller."""

    api: Api
    caller: Caller
    write: Write
    audit: Audit
    _followed: int = 0
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, requests: AsyncIterator[pb.BulkRequest]) -> None:
        """Run until the caller closes its side, all requests are answered and followed jobs have ended."""
        slots = asyncio.Semaphore(UNANSWERED_MAX)
        async with asyncio.TaskGroup() as tasks:
            async for request in requests:
                await self.api.rates.acquire_or_wait(self.caller)
                await slots.acquire()
                tasks.create_task(metered(self._serve(request, slots, tasks)))

    async def _serve(
        self, request: pb.BulkRequest, slots: asyncio.Semaphore, tasks: asyncio.TaskGroup
    ) -> None:
        action = request.WhichOneof("what") or "nothing"
        try:
            reply = await self._handle(request)
        except Unauthenticated:
            raise  # ends the stream: no further request of it could be accepted
        except RotaError as error:
            self.audit(action, request.id[:ID_LENGTH_MAX], error.code)
            reply = pb.BulkReply(refused=refusal_to_wire(error))
        finally:
            slots.release()
        await self._write(request.id, reply)
        if reply.WhichOneof("what") == "accepted" and request.schedule.follow:
            tasks.create_task(metered(self._follow(request.id, JobId(reply.accepted.job))))

    async def _handle(self, request: pb.BulkRequest) -> pb.BulkReply:
        if not 0 < len(request.id) <= ID_LENGTH_MAX:
            raise BadField("id", f"is {len(request.id)} characters long", f"write 1 to {ID_LENGTH_MAX}")
        bounds.check(request)
        match request.WhichOneof("what"):
            case "schedule":
                return await self._schedule(request.schedule)
            case "stop":
                return await self._stop(request.stop)
            case _:
                raise Rejected("the request asks for nothing", hint="fill in schedule or stop")

    async def _schedule(self, job: pb.BulkJob) -> pb.BulkReply:
        if job.follow and self._followed >= FOLLOWED_MAX:
            hint = "open another stream, or watch events"
            raise QueueFull(f"{self._followed} jobs are followed on this stream", field="follow", hint=hint)
        # Counted before the await: otherwise concurrent requests of the stream could pass the check together.
        self._followed += job.follow
        try:
            done = await submit_job(self.api, self.caller, job.spec_json, job.idempotency_key)
        except RotaError:
            self._followed -= job.follow
            raise
        self.audit("schedule", f"job {done.job}", "ok")
        return pb.BulkReply(accepted=pb.BulkAccepted(job=done.job, new=done.new))

    async def _stop(self, request: pb.StopRequest) -> pb.BulkReply:
        reply = await stop_job(self.api, self.caller, request)
        self.audit("stop", f"job {request.job}", "ok")
        return pb.BulkReply(stopped=reply)

    async def _follow(self, request_id: str, job: JobId) -> None:
        async def write(stage: pb.Stage) -> None:
            await self._write(request_id, pb.BulkReply(stage=stage))

        try:
            await JobPush(self.api, job, write).run()
        except* RotaError as errors:
            first = errors.exceptions[0]
            assert isinstance(first, RotaError)
            await self._write(request_id, pb.BulkReply(refused=refusal_to_wire(first)))
        finally:
            self._followed -= 1

    async def _write(self, request_id: str, reply: pb.BulkReply) -> None:
        reply.id = request_id
        async with self._writing:  # gRPC allows one write at a time
            await self.write(reply)


async def submit_job(api: Api, caller: Caller, spec_json: str, key: str) -> submission.SubmitResult:
    raw = spec_json.encode()
    if len(raw) > BODY_BYTES_MAX:
        raise Rejected("the spec is too large", hint=f"send at most {BODY_BYTES_MAX} bytes")
    body = with_named_controller(decode_json(raw))

    def command(view: View, now: Instant) -> Plan[submission.SubmitResult]:
        require_valid_token(api.vault, caller)  # it may have been revoked since this stream was opened
        controller = default_controller(view, body, caller, now)
        return submission.submit_job(view, body, caller, key or None, now, controller=controller)

    return await api.engine.ask("apiserver", command)


async def stop_job(api: Api, caller: Caller, request: pb.StopRequest) -> pb.StopReply:
    admit, body = _stop_action(request)

    def command(view: View, now: Instant) -> Plan[JobId]:
        require_valid_token(api.vault, caller)
        return admit(view, request.job, body, caller, now)

    job = await api.engine.ask("apiserver", command)
    state = await api.engine.read(lambda mirror: jobs.state_of(mirror.jobs[job]))
    return pb.StopReply(state=state.value)


def _stop_action(request: pb.StopRequest) -> tuple[AdmitAction, dict[str, Any]]:
    body = {"reason": request.reason or None, "indices": list(request.indices) or None}
    if not request.kill and not request.signal:
        return actions.cancel, body
    return actions.kill, {**body, "signal": request.signal or None}
