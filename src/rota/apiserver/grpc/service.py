"""ControllerService: the gRPC API for outside controllers, admitted by the same rules as HTTP. [I/O]

Every method runs inside `_serve_call`: it authenticates the caller, waits for its share of the server, checks
the request's bounds, ends the call when the token becomes invalid, and turns errors into a status.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial, wraps
from typing import Any

import grpc
import structlog

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.admission import submission, update
from rota.apiserver.admission.node_actions import set_report_interval
from rota.apiserver.admission.recovery import (
    LossResolution,
    acknowledge_events,
    resolve_losses,
    subscribe,
    subscriber_name,
)
from rota.apiserver.admission.update import UpdateRequest
from rota.apiserver.api import Api, wall_ms
from rota.apiserver.authentication import Unauthenticated, authenticate_token, while_token_valid
from rota.apiserver.grpc import actions, snapshot
from rota.apiserver.grpc.actions import JobActionRequest
from rota.apiserver.grpc.bulk import BulkStream, stop_job, submit_job
from rota.apiserver.grpc.job_push import JobPush, OutputSelection
from rota.apiserver.grpc.statistics import SummaryStream
from rota.apiserver.lookup import can_see_event, find_job
from rota.apiserver.rate_limits import RateLimited, UnknownTokenLimits
from rota.apiserver.spec import fields
from rota.apiserver.streams.event_cursor import EventCursor
from rota.apiserver.streams.log_selection import STREAMS, LogSelection
from rota.engine.meter import Meter, current
from rota.identity import certificates
from rota.identity.audit import AuditEntry, AuditLog
from rota.identity.vault import Vault
from rota.model.errors import BadField, Bug, RotaError
from rota.model.ids import JobId
from rota.model.limits import ANSWERS_MAX, NAME_LENGTH_MAX
from rota.model.plan import Plan
from rota.model.subscriber import Subscriber
from rota.wire import bounds, service_names
from rota.wire.controller import event_to_wire, indices_from_wire
from rota.wire.forwarding import origin
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated.controller_pb2_grpc import ControllerServicer

Context = grpc.aio.ServicerContext[Any, Any]
WriteBatch = Callable[[pb.EventBatch], Awaitable[None]]
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
    "rate_limited": Code.RESOURCE_EXHAUSTED,
    "store_full": Code.RESOURCE_EXHAUSTED,
    "unavailable": Code.UNAVAILABLE,
}
REFUSALS = ("unauthenticated", "not_allowed")  # a caller can provoke any number of these
RESUMED_STREAMS_MAX = 20_000  # streams that a caller resumes by offset: both of ten thousand tasks
log = structlog.get_logger("rota.apiserver")


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses unauthenticated calls by their metadata alone, before any message is read.

    `may_register` decides for the services of workers, whose calls need a token only off loopback.
    """

    def __init__(self, vault: Vault, audit: AuditLog, may_register: Callable[[str], bool]) -> None:
        self._vault = vault
        self._audit = audit
        self._may_register = may_register
        self._guesses = UnknownTokenLimits()

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        authorization = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        refusal = self._refusal(service, str(authorization))
        if refusal is None:
            return await continuation(handler_call_details)

        async def refuse(_: AsyncIterator[bytes], context: Context) -> None:
            action = method[:NAME_LENGTH_MAX].lower()
            error = self._count_guess(context, refusal) if authorization else refusal
            self._audit.write_counted(_audit_entry(context, None, action, service, error.code))
            await _abort(context, error)

        # A stream handler is called before any message is read, a unary one only after its message.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _count_guess(self, context: Context, refusal: Unauthenticated) -> RotaError:
        """The refusal of an unknown token, or that its address has sent too many of them."""
        address = origin(context, certificates.may_forward).rpartition(":")[0]
        try:
            self._guesses.acquire(address)
        except RateLimited as limited:
            return limited
        return refusal

    def _refusal(self, service: str, authorization: str) -> Unauthenticated | None:
        if service in service_names.WORKERS and not self._may_register(authorization):
            return Unauthenticated(
                "off loopback this needs a token", hint="send one of an admin of all namespaces"
            )
        if service != service_names.CONTROLLER:
            return None
        try:
            authenticate_token(self._vault, authorization)
        except Unauthenticated as refusal:
            return refusal
        return None


def _metered(service: type["ControllerService"]) -> type["ControllerService"]:
    """The class with the CPU time of each call measured; `_serve_call` names the account that is charged."""
    for name in vars(ControllerServicer):
        if not name.startswith("_"):
            setattr(service, name, _with_meter(getattr(service, name)))
    return service


def _with_meter(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(method)
    async def measured(service: "ControllerService", request: Any, context: Context) -> Any:
        return await Meter().run(method(service, request, context))

    return measured


@_metered
class ControllerService(ControllerServicer):
    """The service `Controller` of controller.proto; the rules are in `rota.apiserver.admission`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def Schedule(self, request: pb.ScheduleRequest, context: Context) -> None:
        async with self._serve_call(context, "schedule", "job", request) as caller:
            # Ordering: taken before the submit, so that the first events of the job come after it.
            cursor = self._resume_cursor(request.heard)
            done = await submit_job(self._api, caller, request.spec_json, request.idempotency_key)
            self._audit(context, caller, "schedule", f"job {done.job}", "ok")
            output = _output_selection(done.job, request.heard) if request.logs else None
            await JobPush(self._api, done.job, context.write, output, cursor).run()

    async def Follow(self, request: pb.FollowRequest, context: Context) -> None:
        async with self._serve_call(context, "follow", request.job, request) as caller:
            cursor = self._resume_cursor(request.heard)
            job = await self._find(request.job, caller)
            output = _output_selection(job, request.heard) if request.logs else None
            if request.logs:
                await self._audit_reader(context, caller, job)
            await JobPush(self._api, job, context.write, output, cursor).run()

    async def ScheduleMany(self, request_iterator: AsyncIterator[pb.BulkRequest], context: Context) -> None:
        async with self._serve_call(context, "schedule", "jobs") as caller:
            access.require_role(caller, Action.SUBMIT)

            def audit(action: str, target: str, outcome: str) -> None:
                self._audit(context, caller, action, target, outcome)

            await BulkStream(self._api, caller, context.write, audit).run(request_iterator)

    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.StopReply:
        async with self._serve_call(context, "stop", request.job, request) as caller:
            reply = await stop_job(self._api, caller, request)
            self._audit(context, caller, "stop", f"job {request.job}", "ok")
            return reply

    async def Update(self, request: pb.UpdateRequest, context: Context) -> pb.UpdateReply:
        async with self._serve_call(context, "update", request.job, request) as caller:
            version = request.if_version if request.HasField("if_version") else None
            body = fields.decode_json(request.fields_json.encode())
            update_request = UpdateRequest(body, version, request.replace, request.max_parallel or None)
            done = await self._api.engine.ask(
                "apiserver",
                lambda view, now: update.update_job(view, request.job, update_request, caller, now),
            )
            self._audit(context, caller, "update", f"job {done.job.id}", "ok")
            return pb.UpdateReply(version=done.job.version)

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteReply:
        async with self._serve_call(context, "delete", request.job, request) as caller:
            job = await self._api.engine.ask(
                "apiserver", lambda view, _: submission.delete_job(view, request.job, caller)
            )
            self._audit(context, caller, "delete", f"job {job}", "ok")
            return pb.DeleteReply()

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.OrderReply:
        return await self._act("pause", request, context)

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.OrderReply:
        return await self._act("resume", request, context)

    async def Restart(self, request: pb.RestartRequest, context: Context) -> pb.OrderReply:
        return await self._act("restart", request, context)

    async def Move(self, request: pb.MoveRequest, context: Context) -> pb.OrderReply:
        return await self._act("move", request, context)

    async def _act(self, action: str, request: JobActionRequest, context: Context) -> pb.OrderReply:
        async with self._serve_call(context, action, request.job, request) as caller:
            reply = await actions.act_on_job(self._api, caller, request)
            self._audit(context, caller, action, f"job {reply.job}", "ok")
            return reply

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        async with self._serve_call(context, "drain", request.node, request) as caller:
            reply = await actions.drain_node(self._api, caller, request)
            self._audit(context, caller, "drain", f"node {reply.node}", "ok")
            return reply

    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanReply:
        async with self._serve_call(context, "plan", "job", request) as caller:
            return await actions.plan_job(self._api, caller, request)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:
        async with self._serve_call(context, "watch", request.job, request) as caller:
            if request.statistics_interval_ms:
                access.require_role(caller, Action.READ)
            job = request.job and await self._find(request.job, caller)
            position = await self._watch_cursor(request, caller)
            writing = asyncio.Lock()  # two tasks write, and gRPC allows one write at a time

            async def write(batch: pb.EventBatch) -> None:
                async with writing:
                    await context.write(batch)

            # Ordering: present before the metadata is sent, so that a caller that has got it can rely on it.
            with self._mark_present(caller, request.subscriber):
                await context.send_initial_metadata(())  # tells the caller that it counts as present
                async with asyncio.TaskGroup() as tasks:
                    if request.statistics_interval_ms:
                        summaries = SummaryStream(self._api, caller, request.statistics_interval_ms)
                        tasks.create_task(
                            summaries.run(lambda summary: write(pb.EventBatch(summary=summary)))
                        )
                    await self._send_events(write, position, job, caller)

    async def _send_events(self, write: WriteBatch, position: EventCursor, job: str, caller: Caller) -> None:
        """Send events until the call ends; only those of one job, if a job is given."""
        async with aclosing(self._api.event_hub.events_after(position)) as pages:
            async for page in pages:
                mirror = self._api.engine.mirror  # read each time: a full reload replaces it
                events = [
                    event_to_wire(str(happened.at), happened.wall_ms, happened.event)
                    for happened in page
                    if (not job or happened.event.job == job)
                    and can_see_event(mirror, caller, happened.event)
                ]
                if events:
                    await write(pb.EventBatch(events=events))

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Context) -> pb.AcknowledgeReply:
        async with self._serve_call(context, "acknowledge", request.subscriber, request) as caller:
            position = EventCursor.parse("sequence", request.sequence)
            self._api.event_hub.check_cursor(position)
            await self._keep_cursor(caller, request.subscriber, position)
            return pb.AcknowledgeReply()

    async def Resolve(self, request: pb.ResolveRequest, context: Context) -> pb.ResolveReply:
        async with self._serve_call(context, "resolve", request.job, request) as caller:
            indices = indices_from_wire(request.first_index, request.last_index, ANSWERS_MAX)
            resolution = LossResolution(
                request.subscriber, request.job, indices, request.attempt, request.word
            )
            job = await self._api.engine.ask(
                "apiserver", lambda view, _: resolve_losses(view, resolution, caller)
            )
            self._audit(context, caller, "resolve", f"job {job}: {resolution.decision}", "ok")
            return pb.ResolveReply()

    async def State(self, _: pb.StateRequest, context: Context) -> None:
        async with self._serve_call(context, "state", "cluster") as caller:
            access.require_role(caller, Action.READ)
            async with aclosing(snapshot.state_pages(self._api, caller)) as pages:
                async for page in pages:
                    await context.write(page)

    async def SetPace(self, request: pb.SetPaceRequest, context: Context) -> pb.PaceReply:
        async with self._serve_call(context, "set pace", "nodes", request) as caller:
            engine = self._api.engine
            interval = await engine.ask(
                "apiserver",
                lambda *_: set_report_interval(
                    engine.mirror.report_interval, request.least_ms, request.most_ms, caller
                ),
            )
            self._audit(context, caller, "set pace", f"{interval.least_ms} to {interval.most_ms} ms", "ok")
            return pb.PaceReply(least_ms=interval.least_ms, most_ms=interval.most_ms)

    async def _audit_reader(self, context: Context, caller: Caller, job: JobId) -> None:
        """Audit that the caller reads the output of another user's job."""
        user = await self._api.engine.read(lambda mirror: mirror.jobs[job].spec.user)
        if user != caller.name:
            entry = _audit_entry(context, caller, "follow", f"job {job} of {user}", "ok")
            self._api.audit.write_counted(entry, by_target=True)

    async def _find(self, ref: str, caller: Caller) -> JobId:
        return await self._api.engine.read(lambda mirror: find_job(mirror, ref, caller).spec.id)

    def _resume_cursor(self, position: pb.Heard) -> EventCursor:
        """The cursor after which events of tasks are sent: the caller's own, or the present."""
        if not position.sequence:
            return self._api.event_hub.latest_cursor()
        cursor = EventCursor.parse("heard.sequence", position.sequence)
        self._api.event_hub.check_cursor(cursor)
        return cursor

    async def _watch_cursor(self, request: pb.WatchRequest, caller: Caller) -> EventCursor:
        if request.subscriber:
            access.require_role(caller, Action.SUBSCRIBE)
        if request.after:
            position = EventCursor.parse("after", request.after)
            self._api.event_hub.check_cursor(position)
            return position
        if not request.subscriber:
            return self._api.event_hub.latest_cursor()
        stored = await self._keep_cursor(caller, request.subscriber, None)
        return EventCursor(stored.revision, stored.index)

    async def _keep_cursor(self, caller: Caller, subscriber: str, at: EventCursor | None) -> Subscriber:
        """The stored cursor of a subscriber, moved to `at`; a new subscriber starts at the present."""
        access.require_role(caller, Action.SUBSCRIBE)
        engine, name = self._api.engine, subscriber_name(caller, subscriber)
        # Ordering: taken before the command, so that a new subscriber misses no event committed meanwhile.
        now = self._api.event_hub.latest_cursor()

        def decide(*_: object) -> Plan[Subscriber]:
            known = engine.mirror.subscribers
            return (
                subscribe(known, name, now, caller.owner)
                if at is None
                else acknowledge_events(known, name, at.revision, at.index, caller.owner)
            )

        return await engine.ask("apiserver", decide)

    @contextmanager
    def _mark_present(self, caller: Caller, subscriber: str) -> Iterator[None]:
        """Mark a subscriber as present while it watches: recovery controllers are asked only then."""
        if not subscriber:
            yield
            return
        engine, name = self._api.engine, subscriber_name(caller, subscriber)
        # An observation, not a record: after a restart every controller counts as
        # absent until it watches again.
        engine.observe(lambda mirror: mirror.presence.connected_one(name))
        try:
            yield
        finally:
            engine.observe(lambda mirror: mirror.presence.disconnected_one(name, mirror.now_ms))

    @asynccontextmanager
    async def _serve_call(
        self, context: Context, action: str, target: str, request: Any = None
    ) -> AsyncIterator[Caller]:
        """The authenticated caller of a call; every error of the body ends the call with its status."""
        caller: Caller | None = None
        try:
            metadata = dict(context.invocation_metadata() or ())
            caller = authenticate_token(self._api.vault, str(metadata.get("authorization", "")))
            # Billed before it waits for its share: what was measured so far is charged to this caller, too.
            if (meter := current()) is not None:
                meter.bill(partial(self._api.rates.charge, caller))
            await self._api.rates.enter(caller)
            if request is not None:
                bounds.check(request)
            async with while_token_valid(self._api.vault, caller):
                yield caller
        # `abort` raises it; handled as an error it would be answered a second time.
        except grpc.aio.AbortError:
            raise  # the body has ended the call with a status of its own
        except Exception as error:
            refusal = _to_rota_error(error, action)
            self._audit(context, caller, action, target, refusal.code)
            await _abort(context, refusal)

    def _audit(self, context: Context, caller: Caller | None, action: str, target: str, outcome: str) -> None:
        entry = _audit_entry(context, caller, action, target, outcome)
        # Counted, not written one by one: a caller without a valid token could fill the disk with lines.
        if outcome in REFUSALS:
            self._api.audit.write_counted(entry)
        else:
            self._api.audit.write(entry)


def _audit_entry(
    context: Context, caller: Caller | None, action: str, target: str, outcome: str
) -> AuditEntry:
    return AuditEntry(
        at_ms=wall_ms(),
        who=caller.name if caller else "",
        token=caller.token if caller else "",
        action=action,
        target=target,
        outcome=outcome,
        origin=origin(context, certificates.may_forward),
    )


def _output_selection(job: JobId, position: pb.Heard) -> OutputSelection:
    """All output of a job except what the caller has received before."""
    if len(position.logs) > RESUMED_STREAMS_MAX:
        problem = f"names {len(position.logs)} streams"
        raise BadField("heard.logs", problem, f"name at most {RESUMED_STREAMS_MAX}")
    for known in position.logs:
        if known.stream not in STREAMS:
            problem = f"'{known.stream[:40]}' is not a stream"
            raise BadField("heard.logs", problem, f"write {' or '.join(STREAMS)}")
    resume = {(known.index, known.attempt, known.stream): known.offset for known in position.logs}
    last = {(known.index, known.stream): known.attempt for known in position.logs}
    return OutputSelection(LogSelection(job, from_first=True, follow=True, resume=resume), last)


def _to_rota_error(error: BaseException, action: str) -> RotaError:
    """The error without its task group, as one of ours; an unexpected one is logged and becomes a Bug."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RotaError) and not isinstance(error, Bug):
        return error
    log.error("call failed", action=action, exc_info=error)
    return Bug("internal error; the server's log has the details")


async def _abort(context: Context, error: RotaError) -> None:
    metadata = {"rota-code": error.code, "rota-field": getattr(error, "field", None)}
    hint = getattr(error, "hint", None)
    detail = f"{error} ({hint})" if hint else str(error)
    trailing = tuple((key, value) for key, value in metadata.items() if value)
    await context.abort(STATUS_OF_CODE.get(error.code, Code.INTERNAL), detail, trailing)
