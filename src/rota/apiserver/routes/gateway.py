"""Routes of the worker gateway, in the words of its own contract: /start /stop /query /stream. [I/O]

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
ANONYMOUS_CALLER = Caller(
    "worker-gateway", Role.SUBMITTER, ("default",)
)  # who calls these on loopback without a token
SETTLE_SECONDS = 10.0  # for the worker to have begun or ended a job, before its caller is answered
SMALL_CPU = 0.001  # what runs on a worker is the worker's to bound
TEXT_MAX = 16 * 1024
WORKER_PATH_VARIABLE = "ROTA_WORKER_PATH"  # as the gateway knows it
NUMBER_BITS = 62  # of a UUID, below its variant: more than any job number has
UNDECIDED = (AttemptState.OFFERED, AttemptState.QUEUED, AttemptState.ACCEPTED)  # whether a worker starts it

Endpoint = Callable[[Request], Awaitable[Response]]


def _with_contract_errors(endpoint: Endpoint) -> Endpoint:
    """Whatever goes wrong is told as this contract tells it."""

    @wraps(endpoint)
    async def handled(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Bug:
            raise
        except RotaError as error:
            request.state.code = error.code
            return _error_response(str(error))

    return handled


@_with_contract_errors
async def start_on_worker(request: Request) -> Response:
    """201 once the worker has started it; of what it did not start nothing starts later."""
    api, caller = api_of(request), caller_of(request)
    said = _parse_object(await json_body(request))
    command = fields.text("command", said.get("command"), TEXT_MAX)
    path = said.get("path") or ""
    env = {WORKER_PATH_VARIABLE: fields.text("path", path, TEXT_MAX)} if path else {}
    await _require_responsive(
        api, await api.engine.read(lambda view: _find_worker(view, said.get("worker_id")).spec.id)
    )
    job_id = ""

    def submit(view: View, now: Any) -> Any:
        nonlocal job_id
        node = _find_worker(view, said.get("worker_id")).spec.name
        job_id = _job_id(view.counters.jobs + 1)
        spec = {"command": [command], "name": job_id, "on": node, "cpu": SMALL_CPU, "env": env}
        return submission.submit_job(view, {**spec, "recovery": "none"}, caller, None, now)

    done = await api.engine.ask("apiserver", submit)
    set_audit_target(request, f"job {done.job}")
    try:
        await _wait_until_started(api, done.job)
    except RotaError:
        await _cancel(api, done.job, caller)
        raise
    return _json_response({"job_id": job_id}, 201)


@_with_contract_errors
async def stop_on_worker(request: Request) -> Response:
    """Answered when the job has ended, or its worker is at least there to be told to end it."""
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
    """What it writes, until it has ended."""
    api = api_of(request)
    job, _ = await _requested_job(request)

    async def run(write: responses.Write) -> bytes:
        await api.logs.copy_text(LogSelection(job, 0, streams=("stdout",), follow=True), write)
        return b""

    return _OutputResponse(run, "text/plain; charset=utf-8")


class _OutputResponse(responses.StreamingResponse):
    """Output as it comes; an error before the first byte is told as this contract tells errors."""

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
    """The fields of a request. As the contract has it, unknown ones are ignored."""
    if not isinstance(body, dict):
        raise Rejected("the body is not a JSON object")
    return body


def _job_id(number: int) -> str:
    """A new UUID that ends in the number of a job."""
    return str(UUID(int=secrets.randbits(64) << 64 | number, version=4))


def _number_of(job_id: object) -> str:
    """The number of the job that a UUID was made for, as an id of ours; empty if it is no UUID."""
    try:
        return str(UUID(str(job_id)).int & ((1 << NUMBER_BITS) - 1))
    except ValueError:
        return ""


async def _requested_job(request: Request) -> tuple[JobId, NodeId]:
    """The job that is named, if it is one of that worker's, and the worker's node."""
    said, caller = _parse_object(await json_body(request)), caller_of(request)

    def read(mirror: Mirror) -> tuple[JobId, NodeId]:
        node = _find_worker(mirror, said.get("worker_id")).spec
        entry = mirror.jobs.get(JobId(_number_of(said.get("job_id"))))
        if entry is None or entry.spec.name != said["job_id"] or not can_see(caller, entry.spec.namespace):
            raise NotFound("job not found")
        if not any(one.label == "node" and node.name in one.values for one in entry.spec.where):
            raise NotFound("job not found")
        return entry.spec.id, node.id

    return await api_of(request).engine.read(read)


def _find_worker(view: View, worker_id: object) -> NodeView:
    node = worker_node(view, worker_id) if isinstance(worker_id, str) else None
    if node is None:
        raise NotFound("worker not found")
    return node


async def _require_responsive(api: Api, node: NodeId) -> None:
    """A start sent to a frozen worker would be carried out when it thaws: it must answer first."""
    assert api.workers is not None, "these routes are served where there is a gateway"
    if not await api.workers.is_responsive(node):
        raise Unavailable("the worker does not answer")


async def _cancel(api: Api, job: JobId, caller: Caller) -> None:
    if not await api.engine.read(lambda mirror: _has_ended(mirror, job)):
        await api.engine.ask("apiserver", lambda view, now: actions.cancel(view, job, {}, caller, now))


async def _wait_until_started(api: Api, job: JobId) -> None:
    """Returns when the worker has begun the job, or is about to; raises with the reason if it does not."""
    await _wait_until(api, job, lambda mirror: _is_decided(mirror, job))
    placed = await api.engine.read(lambda mirror: _decisive_attempt(mirror, job))
    status = None if placed is None else placed.status
    if status is not None and status.started_at_ms:
        return
    if placed is None or status is None or status.state != AttemptState.ACCEPTED:
        raise Unavailable((status and status.reason) or "the worker did not take the job")
    await _require_responsive(api, placed.node)  # a worker that is merely slow will start it


async def _wait_until(api: Api, job: JobId, is_so: Callable[[Mirror], bool]) -> bool:
    """Whether it came to be so within SETTLE_SECONDS."""
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            with api.event_hub.follow_job(job) as news:
                while not await api.engine.read(is_so):
                    await news.wait()
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
    """The attempt by which a start is judged: the one the worker refused, else the last."""
    entry = mirror.jobs.get(job)
    placed = [] if entry is None else tasks.attempts_of(entry, 0)
    refused = [one for one in placed if one.state == AttemptState.REFUSED]
    return next(iter((*refused, *reversed(placed))), None)


def _query_json(entry: JobEntry) -> dict[str, Any]:
    """What the worker said of its end; where it said nothing, what became of the job."""
    if entry.status is None or not has_ended(entry):
        return {"done": False, "error": False, "error_text": ""}
    attempts = tasks.attempts_of(entry, 0)
    said = attempts[-1].status if attempts else None
    if said is not None and said.exit_code != NO_EXIT_CODE:
        return {"done": True, "error": said.exit_code != 0, "error_text": said.reason or ""}
    error = entry.status.state is not JobState.SUCCEEDED
    text = entry.status.reason or entry.status.state.value
    return {"done": True, "error": error, "error_text": text if error else ""}


ROUTES = [
    responses.route("POST", "/start", start_on_worker),
    responses.route("POST", "/stop", stop_on_worker),
    responses.route("POST", "/query", query_on_worker),
    responses.route("POST", "/stream", stream_from_worker),
]
