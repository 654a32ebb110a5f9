"""Routes of the worker gateway, as its own contract defines them: /start /stop /query /stream. [I/O]

A job started here is an ordinary one, pinned to the worker's node. Its name is the UUID that the caller is
given, so that `rota show UUID` finds it; the lower 62 bits of the UUID are the job's number.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rota.apiserver import responses
from rota.apiserver.access import Caller, can_see
from rota.apiserver.admission import actions, submission
from rota.apiserver.api import Api
from rota.apiserver.responses import COMMON_HEADERS, api_of, caller_of, json_body, set_audit_target
from rota.apiserver.spec import fields
from rota.apiserver.streams.log_selection import LogSelection
from rota.apiserver.views import tasks
from rota.apiserver.views.jobs import has_ended
from rota.apiserver.views.tasks import PlacedAttempt
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.attempt import NO_EXIT_CODE
from rota.model.errors import Bug, NotFound, Rejected, RotaError, Unavailable
from rota.model.ids import JobId, NodeId
from rota.model.lifecycle import AttemptState, JobState
from rota.model.view import NodeView, View, worker_node

PATHS = ("/start", "/stop", "/query", "/stream")
ANONYMOUS_CALLER = Caller("worker-gateway", Role.SUBMITTER, ("default",))  # on loopback, without a token
SETTLE_SECONDS = 10.0  # for the worker to start or end a job, before its caller is answered
SMALL_CPU = 0.001  # the worker itself limits what runs on it
TEXT_MAX = 16 * 1024
WORKER_PATH_VARIABLE = "ROTA_WORKER_PATH"  # read by rota.gateway.job_translation
NUMBER_BITS = 62  # of a UUID, below its variant: more than any job number has
UNDECIDED = (AttemptState.OFFERED, AttemptState.QUEUED, AttemptState.ACCEPTED)  # it may start or be refused

Endpoint = Callable[[Request], Awaitable[Response]]


def _with_contract_errors(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with errors in the form of the contract: status 500 and a text."""

    @wraps(endpoint)
    async def with_errors(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Bug:
            raise
        except RotaError as error:
            request.state.code = error.code
            return _error_response(str(error))

    return with_errors


@_with_contract_errors
async def start_on_worker(request: Request) -> Response:
    """201 once the worker has started the job. A job that is not started in time is canceled."""
    api, caller = api_of(request), caller_of(request)
    body = _parse_object(await json_body(request))
    command = fields.text("command", body.get("command"), TEXT_MAX)
    path = body.get("path") or ""
    env = {WORKER_PATH_VARIABLE: fields.text("path", path, TEXT_MAX)} if path else {}
    await _require_responsive(
        api, await api.engine.read(lambda view: _find_worker(view, body.get("worker_id")).spec.id)
    )
    job_id = ""

    def submit(view: View, now: Any) -> Any:
        nonlocal job_id
        node = _find_worker(view, body.get("worker_id")).spec.name
        # The number of the job that this very command creates: known only here, where it is decided.
        job_id = _job_id(view.counters.jobs + 1)
        spec = {"command": [command], "name": job_id, "on": node, "cpu": SMALL_CPU, "env": env}
        # The caller has been given this worker: a lost job must not start on another one, or a second time.
        return submission.submit_job(view, {**spec, "recovery": "none"}, caller, None, now)

    done = await api.engine.ask("apiserver", submit)
    set_audit_target(request, f"job {done.job}")
    try:
        await _wait_until_started(api, done.job)
    except RotaError:
        # The caller is told that nothing was started: the job must not start later.
        await _cancel(api, done.job, caller)
        raise
    return _json_response({"job_id": job_id}, 201)


@_with_contract_errors
async def stop_on_worker(request: Request) -> Response:
    """Answered when the job has ended, or if its worker is at least responsive and will stop it."""
    api, caller = api_of(request), caller_of(request)
    job, node = await _requested_job(request)
    await _cancel(api, job, caller)
    set_audit_target(request, f"job {job}")
    if not await _wait_until(api, job, lambda mirror: _has_ended(mirror, job)):
        await _require_responsive(api, node)
    return _json_response({"success": True})


@_with_contract_errors
async def query_on_worker(request: Request) -> Response:
    job, _ = await _requested_job(request)
    return _json_response(await api_of(request).engine.read(lambda mirror: _query_json(mirror.jobs[job])))


@_with_contract_errors
async def stream_from_worker(request: Request) -> Response:
    """The stdout of the job until it has ended."""
    api = api_of(request)
    job, _ = await _requested_job(request)

    async def run(write: responses.Write) -> bytes:
        await api.logs.copy_text(LogSelection(job, 0, streams=("stdout",), follow=True), write)
        return b""

    return _OutputResponse(run, "text/plain; charset=utf-8")


class _OutputResponse(responses.StreamingResponse):
    """Output as it arrives; an error before the first byte has the form of the contract."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except Bug:
            raise
        except RotaError as error:
            if self.has_started:
                raise
            await _error_response(str(error))(scope, receive, send)


def _json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value) + b"\n", status, COMMON_HEADERS, "application/json")


def _error_response(why: str) -> Response:
    return _json_response({"error": why}, 500)


def _parse_object(body: Any) -> dict[str, Any]:
    """The fields of a request. The contract says that unknown ones are ignored."""
    if not isinstance(body, dict):
        raise Rejected("the body is not a JSON object")
    return body


def _job_id(number: int) -> str:
    """A new UUID that ends in the number of a job."""
    return str(UUID(int=secrets.randbits(64) << 64 | number, version=4))


def _number_of(job_id: object) -> str:
    """The job number in the lower bits of a UUID, as an id; empty if the text is no UUID."""
    try:
        return str(UUID(str(job_id)).int & ((1 << NUMBER_BITS) - 1))
    except ValueError:
        return ""


async def _requested_job(request: Request) -> tuple[JobId, NodeId]:
    """The job and the node of the worker that the request names, if the job was started there."""
    body, caller = _parse_object(await json_body(request)), caller_of(request)

    def read(mirror: Mirror) -> tuple[JobId, NodeId]:
        node = _find_worker(mirror, body.get("worker_id")).spec
        entry = mirror.jobs.get(JobId(_number_of(body.get("job_id"))))
        # The whole UUID is compared: its lower bits alone are a job number, which a caller could guess.
        if entry is None or entry.spec.name != body["job_id"] or not can_see(caller, entry.spec.namespace):
            raise NotFound("job not found")
        if not any(rule.label == "node" and node.name in rule.values for rule in entry.spec.where):
            raise NotFound("job not found")
        return entry.spec.id, node.id

    return await api_of(request).engine.read(read)


def _find_worker(view: View, worker_id: object) -> NodeView:
    node = worker_node(view, worker_id) if isinstance(worker_id, str) else None
    if node is None:
        raise NotFound("worker not found")
    return node


async def _require_responsive(api: Api, node: NodeId) -> None:
    """Raise Unavailable unless the worker answers: a frozen one would carry out the start when it resumes."""
    assert api.workers is not None, "these routes are served only with a gateway"
    if not await api.workers.is_responsive(node):
        raise Unavailable("the worker does not answer")


async def _cancel(api: Api, job: JobId, caller: Caller) -> None:
    if not await api.engine.read(lambda mirror: _has_ended(mirror, job)):
        await api.engine.ask("apiserver", lambda view, now: actions.cancel(view, job, {}, caller, now))


async def _wait_until_started(api: Api, job: JobId) -> None:
    """Return when the worker has started the job or is about to; raises Unavailable if it does not."""
    await _wait_until(api, job, lambda mirror: _is_decided(mirror, job))
    placed = await api.engine.read(lambda mirror: _decisive_attempt(mirror, job))
    status = None if placed is None else placed.status
    if status is not None and status.started_at_ms:
        return
    if placed is None or status is None or status.state != AttemptState.ACCEPTED:
        raise Unavailable((status and status.reason) or "the worker did not accept the job")
    await _require_responsive(api, placed.node)  # a worker that is only slow will start it


async def _wait_until(api: Api, job: JobId, is_reached: Callable[[Mirror], bool]) -> bool:
    """Whether the job reached the condition within SETTLE_SECONDS."""
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            with api.event_hub.follow_job(job) as changes:
                while not await api.engine.read(is_reached):
                    await changes.wait()
    except TimeoutError:
        return False
    return True


def _has_ended(mirror: Mirror, job: JobId) -> bool:
    entry = mirror.jobs.get(job)
    return entry is None or has_ended(entry)


def _is_decided(mirror: Mirror, job: JobId) -> bool:
    placed = _decisive_attempt(mirror, job)
    return _has_ended(mirror, job) or (placed is not None and placed.state not in UNDECIDED)


def _decisive_attempt(mirror: Mirror, job: JobId) -> PlacedAttempt | None:
    """The attempt that decides whether a start succeeded: the one the worker refused, else the last."""
    entry = mirror.jobs.get(job)
    placed = [] if entry is None else tasks.attempts_of(entry, 0)
    refused = [attempt for attempt in placed if attempt.state == AttemptState.REFUSED]
    return next(iter((*refused, *reversed(placed))), None)


def _query_json(entry: JobEntry) -> dict[str, Any]:
    """How the job ended as the worker reported it; without a report, the state of the job."""
    if entry.status is None or not has_ended(entry):
        return {"done": False, "error": False, "error_text": ""}
    attempts = tasks.attempts_of(entry, 0)
    reported = attempts[-1].status if attempts else None
    if reported is not None and reported.exit_code != NO_EXIT_CODE:
        return {"done": True, "error": reported.exit_code != 0, "error_text": reported.reason or ""}
    error = entry.status.state is not JobState.SUCCEEDED
    text = entry.status.reason or entry.status.state.value
    return {"done": True, "error": error, "error_text": text if error else ""}


ROUTES = [
    responses.route("POST", "/start", start_on_worker),
    responses.route("POST", "/stop", stop_on_worker),
    responses.route("POST", "/query", query_on_worker),
    responses.route("POST", "/stream", stream_from_worker),
]
