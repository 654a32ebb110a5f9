"""The gRPC face: what outside controllers may ask, with the same rules as HTTP. [I/O]"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import structlog

from rota.apiserver import access, admission, admit_update, admit_wishes, fields, show
from rota.apiserver.access import Action, Caller
from rota.apiserver.admit_update import Update, Updated
from rota.apiserver.admit_wishes import Admit
from rota.apiserver.api import Api, wall_ms, who_calls
from rota.apiserver.chunks import Chunk
from rota.apiserver.feed import Position, standing
from rota.apiserver.finding import find_job, may_hear
from rota.apiserver.follow import follow
from rota.apiserver.wanted import Wanted
from rota.identity.audit import AuditEntry
from rota.model.errors import Bug, Rejected, RotaError
from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.model.limits import BODY_BYTES_MAX
from rota.model.plan import Plan
from rota.model.subscriber import Subscriber
from rota.wire.controller import event_to_wire, output_to_wire, stage_to_wire
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated.controller_pb2_grpc import ControllerServicer

Context = grpc.aio.ServicerContext[Any, Any]
Code = grpc.StatusCode
STATUS_OF_CODE = {
    "bad_request": Code.INVALID_ARGUMENT,
    "bad_field": Code.INVALID_ARGUMENT,
    "unauthenticated": Code.UNAUTHENTICATED,
    "not_allowed": Code.PERMISSION_DENIED,
    "not_found": Code.NOT_FOUND,
    "conflict": Code.FAILED_PRECONDITION,
    "gone": Code.OUT_OF_RANGE,
    "queue_full": Code.RESOURCE_EXHAUSTED,
    "store_full": Code.RESOURCE_EXHAUSTED,
    "unavailable": Code.UNAVAILABLE,
}
log = structlog.get_logger("rota.apiserver")


class ControllerDoor(ControllerServicer):
    def __init__(self, api: Api) -> None:
        self._api = api

    async def Schedule(self, request: pb.ScheduleRequest, context: Context) -> None:
        async with self._entered(context, "schedule", "job") as caller:
            if len(request.spec_json) > BODY_BYTES_MAX:
                raise Rejected("the spec is too large", hint=f"send at most {BODY_BYTES_MAX} bytes")
            body = fields.decode_json(request.spec_json.encode())
            key = request.idempotency_key or None
            done: admission.Submitted = await self._api.engine.ask(
                "apiserver", lambda view, now: admission.submit(view, body, caller, key, now)
            )
            self._note(context, caller.name, "schedule", f"job {done.job}", "ok")
            await self._tell(done.job, context, logs=request.logs)

    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.StopReply:
        async with self._entered(context, "stop", request.job) as caller:
            admit, body = _stopping(request)
            job: JobId = await self._api.engine.ask(
                "apiserver", lambda view, now: admit(view, request.job, body, caller, now)
            )
            self._note(context, caller.name, "stop", f"job {job}", "ok")
            state = await self._api.engine.read(lambda mirror: show.state_of(mirror.jobs[job]))
            return pb.StopReply(state=state.value)

    async def Update(self, request: pb.UpdateRequest, context: Context) -> pb.UpdateReply:
        async with self._entered(context, "update", request.job) as caller:
            version = request.if_version if request.HasField("if_version") else None
            body = fields.decode_json(request.fields_json.encode())
            wanted = Update(body, version, request.replace, request.max_parallel or 1)
            done: Updated = await self._api.engine.ask(
                "apiserver",
                lambda view, now: admit_update.update(view, request.job, wanted, caller, now),
            )
            self._note(context, caller.name, "update", f"job {done.job.id}", "ok")
            return pb.UpdateReply(version=done.job.version)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteReply:
        async with self._entered(context, "delete", request.job) as caller:
            job = await self._api.engine.ask(
                "apiserver", lambda view, _: admission.delete(view, request.job, caller)
            )
            self._note(context, caller.name, "delete", f"job {job}", "ok")
            return pb.DeleteReply()

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:
        async with self._entered(context, "watch", request.job) as caller:
            engine = self._api.engine
            job = request.job and await engine.read(
                lambda mirror: find_job(mirror, request.job, caller).spec.id
            )
            position = await self._position(request, caller)
            async with aclosing(self._api.changes.events_after(position)) as pages:
                async for page in pages:
                    events = [
                        event_to_wire(str(happened.at), happened.wall_ms, happened.event)
                        for happened in page
                        if (not job or happened.event.job == job)
                        and may_hear(engine.mirror, caller, happened.event.job)
                    ]
                    if events:
                        await context.write(pb.EventBatch(events=events))

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Context) -> pb.AcknowledgeReply:
        async with self._entered(context, "acknowledge", request.subscriber) as caller:
            position = Position.parse("sequence", request.sequence)
            self._api.changes.check(position)
            await self._keep(caller, request.subscriber, position)
            return pb.AcknowledgeReply()

    async def _tell(self, job: JobId, context: Context, *, logs: bool) -> None:
        """Stages as they come and, where asked for, all output; the final stage is the last word."""
        writing = asyncio.Lock()

        async def write(stage: pb.Stage) -> None:
            async with writing:
                await context.write(stage)

        async def write_output(chunk: Chunk) -> None:
            await write(output_to_wire(job, chunk))

        async with asyncio.TaskGroup() as tasks, aclosing(follow(self._api, job)) as lines:
            wanted = Wanted(job, from_first=True, follow=True)
            output = tasks.create_task(self._api.logs.copy(wanted, write_output)) if logs else None
            async for line in lines:
                if line is None:
                    continue
                final = JobState(line["state"]) in show.ENDS
                if final and output is not None:
                    await output
                await write(stage_to_wire(line, final=final))

    async def _position(self, request: pb.WatchRequest, caller: Caller) -> Position:
        if request.after:
            position = Position.parse("after", request.after)
            self._api.changes.check(position)
            return position
        if not request.subscriber:
            return self._api.changes.now()
        kept = await self._keep(caller, request.subscriber, None)
        return Position(kept.revision, kept.index)

    async def _keep(self, caller: Caller, subscriber: str, at: Position | None) -> Subscriber:
        """Where a subscriber stands: moved on to `at`; or, the first time it is heard of, from now on."""
        access.require_role(caller, Action.SUBSCRIBE)
        engine, name = self._api.engine, admission.subscriber_name(caller, subscriber)
        now = self._api.changes.now()

        def decide(*_: object) -> Plan:
            known = engine.mirror.subscribers
            return (
                standing(known, name, now)
                if at is None
                else admission.acknowledge(known, name, at.revision, at.index)
            )

        kept: Subscriber = await engine.ask("apiserver", decide)
        return kept

    @asynccontextmanager
    async def _entered(self, context: Context, action: str, target: str) -> AsyncIterator[Caller]:
        """Who calls, and the outermost edge for whatever goes wrong."""
        name = ""
        try:
            said = dict(context.invocation_metadata() or ())
            caller = who_calls(self._api.vault, str(said.get("authorization", "")))
            name = caller.name
            yield caller
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            refused = _told(error, action)
            self._note(context, name, action, target, refused.code)
            await _abort(context, refused)

    def _note(self, context: Context, who: str, action: str, target: str, outcome: str) -> None:
        entry = AuditEntry(
            at_ms=wall_ms(), who=who, action=action, target=target, outcome=outcome, origin=context.peer()
        )
        self._api.audit.write(entry)


def _stopping(request: pb.StopRequest) -> tuple[Admit, dict[str, Any]]:
    said = {"reason": request.reason or None, "indices": list(request.indices) or None}
    if not request.kill and not request.signal:
        return admit_wishes.cancel, said
    return admit_wishes.kill, {**said, "signal": request.signal or None}


def _told(error: BaseException, action: str) -> RotaError:
    """An error foreseen, alone or from within a group of tasks, as it is; any other as a fault of ours."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RotaError) and not isinstance(error, Bug):
        return error
    log.error("a call failed", action=action, exc_info=error)
    return Bug("something went wrong inside; the server's log says what")


async def _abort(context: Context, error: RotaError) -> None:
    said = {"rota-code": error.code, "rota-field": getattr(error, "field", None)}
    hint = getattr(error, "hint", None)
    detail = f"{error} ({hint})" if hint else str(error)
    trailing = tuple((key, value) for key, value in said.items() if value)
    await context.abort(STATUS_OF_CODE.get(error.code, Code.INTERNAL), detail, trailing)
