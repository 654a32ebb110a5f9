"""Routes of the worker gateway, in the words of its own contract: /start /stop /query /stream. [I/O]"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import admission, admit_wishes, answers, fields, show_tasks
from rota.apiserver.access import Caller
from rota.apiserver.answers import answer, api_of, caller_of, json_body, noted
from rota.apiserver.api import Api
from rota.apiserver.show import has_ended
from rota.apiserver.wanted import Wanted
from rota.engine.entries import JobEntry
from rota.engine.mirror import Mirror
from rota.identity.tokens import Role
from rota.model.errors import Bug, NotFound, RotaError
from rota.model.ids import JobId
from rota.model.view import NodeView, View, worker_node

PATHS = ("/start", "/stop", "/query", "/stream")
ANYBODY = Caller(
    "worker-gateway", Role.SUBMITTER, ("default",)
)  # who calls these on loopback without a token
START_SECONDS = 10.0  # that a start is waited for: then it is under way, and can be asked after
SMALL_CPU = 0.001  # what runs on a worker is the worker's to bound
TEXT_MAX = 16 * 1024
PATH = "ROTA_WORKER_PATH"  # as the gateway knows it

Endpoint = Callable[[Request], Awaitable[Response]]


def _plainly(endpoint: Endpoint) -> Endpoint:
    """Whatever goes wrong is told as this contract tells it."""

    @wraps(endpoint)
    async def told(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Bug:
            raise
        except RotaError as error:
            request.state.code = error.code
            return answer({"error": str(error)}, 500)

    return told


@_plainly
async def start_on_worker(request: Request) -> Response:
    """A job like any other, pinned to the worker's node, which is never started a second time elsewhere."""
    api, caller = api_of(request), caller_of(request)
    said = fields.known_fields(await json_body(request), ("worker_id", "command", "path"))
    command = fields.text("command", said.get("command"), TEXT_MAX)
    path = said.get("path") or ""
    env = {PATH: fields.text("path", path, TEXT_MAX)} if path else {}

    def submit(view: View, now: Any) -> Any:
        name = _worker(view, said.get("worker_id")).spec.name
        spec = {"command": [command], "name": "worker-job", "on": name, "cpu": SMALL_CPU, "env": env}
        return admission.submit(view, {**spec, "recovery": "none"}, caller, None, now)

    done: admission.Submitted = await api.engine.ask("apiserver", submit)
    noted(request, f"job {done.job}")
    refusal = await _begun(api, done.job)
    if refusal is not None:
        return answer({"error": refusal}, 500)
    return answer({"job_id": done.job}, 201)


@_plainly
async def stop_on_worker(request: Request) -> Response:
    api, caller = api_of(request), caller_of(request)
    job = await _asked(request)
    if not await api.engine.read(lambda mirror: has_ended(mirror.jobs[job])):
        await api.engine.ask("apiserver", lambda view, now: admit_wishes.cancel(view, job, {}, caller, now))
    noted(request, f"job {job}")
    return answer({"success": True})


@_plainly
async def query_on_worker(request: Request) -> Response:
    job = await _asked(request)
    return answer(await api_of(request).engine.read(lambda mirror: _queried(mirror.jobs[job])))


@_plainly
async def stream_from_worker(request: Request) -> Response:
    """What it writes, until it has ended."""
    api, job = api_of(request), await _asked(request)

    async def run(write: answers.Write) -> bytes:
        await api.logs.copy_text(Wanted(job, 0, streams=("stdout",), follow=True), write)
        return b""

    return answers.Stream(run, "text/plain; charset=utf-8", beginning=b"")


async def _asked(request: Request) -> JobId:
    """Of the job that is named, if it is one of that worker's."""
    said = fields.known_fields(await json_body(request), ("worker_id", "job_id"))
    worker, job, caller = said.get("worker_id"), said.get("job_id"), caller_of(request)

    def look(mirror: Mirror) -> JobId:
        name = _worker(mirror, worker).spec.name
        entry = mirror.jobs.get(JobId(str(job)))
        is_its = entry is not None and any(
            one.label == "node" and name in one.values for one in entry.spec.where
        )
        if (
            entry is None
            or not is_its
            or not (caller.everywhere or entry.spec.namespace in caller.namespaces)
        ):
            raise NotFound("job not found")
        return entry.spec.id

    return await api_of(request).engine.read(look)


def _worker(view: View, worker_id: object) -> NodeView:
    node = worker_node(view, worker_id) if isinstance(worker_id, str) else None
    if node is None:
        raise NotFound("worker not found")
    return node


async def _begun(api: Api, job: JobId) -> str | None:
    """Why it could not be started; None: it was, or that is not known yet."""
    try:
        async with asyncio.timeout(START_SECONDS):
            with api.changes.following(job) as news:
                while True:
                    shown = await api.engine.read(lambda mirror: _first_task(mirror, job))
                    if shown is None or shown["started_at_ms"] is not None:
                        return None
                    if shown["ended_at_ms"] is not None:
                        return str(shown["reason"] or shown["state"])
                    await news.wait()
    except TimeoutError:
        return None


def _first_task(mirror: Mirror, job: JobId) -> dict[str, Any] | None:
    entry = mirror.jobs.get(job)
    return None if entry is None else show_tasks.task_line(mirror, entry, 0)


def _queried(entry: JobEntry) -> dict[str, Any]:
    status = entry.status if has_ended(entry) else None
    error = status is not None and status.state.value != "succeeded"
    text = (status.reason or status.state.value) if status is not None and error else ""
    return {"done": status is not None, "error": error, "error_text": text}


ROUTES = [
    answers.route("POST", "/start", start_on_worker),
    answers.route("POST", "/stop", stop_on_worker),
    answers.route("POST", "/query", query_on_worker),
    answers.route("POST", "/stream", stream_from_worker),
]
