"""Odd job specs and updates over HTTP: no 5xx, no crash, canaries finish, all jobs can be deleted. [I/O]"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec

from rota.apiserver.openapi.document import OPERATIONS
from rota.apiserver.openapi.fields import Operation
from rota.apiserver.openapi.spec import JobBody
from rota.testing.cluster import HttpReply
from tests.fuzz import jobs
from tests.fuzz.arena import HOSTILE, Arena, Outcomes
from tests.fuzz.odd import NUMBERS, SHAPES, TEXTS, bent, odd

FIELDS = [field.name for field in msgspec.structs.fields(JobBody)]
# All operations on jobs and crons with a body, except submits, which are drawn separately.
DRAWN_OPERATIONS = [
    operation
    for operation in OPERATIONS
    if operation.body is not None and operation.path.startswith(("/v1/jobs/{ref}", "/v1/crons", "/v1/plan"))
]
CRON = "fuzz"
_NOT_IN_A_TEMPLATE = ("name", "namespace", "after", "deadline")
_EXPECTED = (503, 507)  # not ready, disk full: documented answers of a healthy server
_SWEPT = 250  # pairs of a field and a value between two checks
_JOBS_KEPT = 40  # unfinished jobs of the hostile tenant before all are killed and a canary must finish


class SpecRequest(NamedTuple):
    """One HTTP request; `kind` is its row in the table of outcomes."""

    kind: str
    method: str
    path: str
    body: Any


def fuzz(arena: Arena, seed: int, requests: int, outcomes: Outcomes) -> None:
    """Send requests drawn from the seed; every accepted job is left to run for a while."""
    rng = Random(seed)
    accepted = ["1"]
    for number in range(requests):
        request = _request(rng, rng.choice(accepted))
        answer = _send(arena, request, outcomes, f"seed {seed}, request {number}")
        if request.path == "/v1/jobs" and answer.status == 201:
            accepted.append(answer.body["id"])
        if len(accepted) > _JOBS_KEPT:
            accepted = ["1"]
            arena.check()
            arena.clear()
    arena.check()
    arena.clear()


def sweep(arena: Arena, outcomes: Outcomes, part: range) -> None:
    """Send each field with each odd value, in a submit and in an update; `part` selects pairs."""
    pairs = list(_pairs())
    targets = _targets(arena)
    for count, number in enumerate(part, 1):
        field, value = pairs[number]
        body = {"command": ["true"], "namespace": HOSTILE, field: value}
        _send(
            arena, SpecRequest("submit, one odd field", "POST", "/v1/jobs", body), outcomes, f"pair {number}"
        )
        path = f"/v1/jobs/{targets[number % len(targets)]}"
        _send(
            arena,
            SpecRequest("update, one odd field", "PATCH", path, {field: value}),
            outcomes,
            f"pair {number}",
        )
        if count % _SWEPT == 0:
            arena.check()
            arena.clear()
            targets = _targets(arena)
    arena.check()
    arena.clear()


def _targets(arena: Arena) -> list[str]:
    """Two jobs to update: a running one, and a pending one, which has more mutable fields."""
    common = {"command": ["sleep", "3600"], "namespace": HOSTILE, "cpu": 0.1}
    bodies = (common, common | {"where": ["node == nowhere"]})
    return [str(arena.call("POST", "/v1/jobs", body).body["id"]) for body in bodies]


def pairs_count() -> int:
    return len(FIELDS) * (len(NUMBERS) + len(TEXTS) + len(SHAPES))


def _pairs() -> Iterator[tuple[str, Any]]:
    for field in FIELDS:
        for value in (*NUMBERS, *TEXTS, *SHAPES):
            yield field, value


def _request(rng: Random, job: str) -> SpecRequest:
    match rng.randrange(6):
        case 0:
            body = {"command": ["true"], "namespace": HOSTILE, rng.choice(FIELDS): odd(rng)}
            return SpecRequest("submit, one odd field", "POST", "/v1/jobs", body)
        case 1 | 2:
            return SpecRequest("submit, combined", "POST", "/v1/jobs", _job(rng))
        case 3:
            field = rng.choice(FIELDS)
            return SpecRequest("update, one odd field", "PATCH", f"/v1/jobs/{job}", {field: odd(rng)})
        case 4:
            body = {name: _bent(rng, value) for name, value in jobs.patch(rng).items()}
            return SpecRequest("update, combined", "PATCH", f"/v1/jobs/{job}", body)
        case _:
            return _operation(rng, rng.choice(DRAWN_OPERATIONS), job)


def _job(rng: Random) -> dict[str, Any]:
    """A plausible job with about one bent field."""
    body = jobs.job(rng) | {"namespace": HOSTILE}
    for name in rng.sample(sorted(body), rng.choice((0, 1, 1, 2))):
        body[name] = bent(rng, body[name])
    return body


def _operation(rng: Random, operation: Operation, job: str) -> SpecRequest:
    assert operation.body is not None
    names = [field.name for field in msgspec.structs.fields(operation.body)]
    chosen = rng.sample(names, min(len(names), rng.choice((0, 0, 1, 2))))
    body = {name: _bent(rng, rng.choice(jobs.VALUES.get(name, (0,)))) for name in chosen}
    if "schedule" in names:
        template = {name: value for name, value in _job(rng).items() if name not in _NOT_IN_A_TEMPLATE}
        cron = {"name": CRON, "namespace": HOSTILE, "schedule": "* * * * *", "job": template}
        bending = rng.sample(sorted(cron), rng.choice((0, 0, 1)))
        body = cron | {name: bent(rng, cron[name]) for name in bending} | body
    elif "command" in names:
        body = _job(rng) | body
    is_cron = operation.path.startswith("/v1/crons/")
    numbers = {"index": rng.choice((0, 1, 2**31)), "attempt": rng.choice((0, 1, 2**63))}
    path = operation.path.format(ref=CRON if is_cron else job, **numbers)
    kind = f"{operation.method} {operation.path.removeprefix('/v1')}"
    return SpecRequest(kind, operation.method, f"{path}?namespace={HOSTILE}" if is_cron else path, body)


def _bent(rng: Random, value: Any) -> Any:
    return bent(rng, value) if rng.random() < 0.6 else value


def _send(arena: Arena, request: SpecRequest, outcomes: Outcomes, source: str) -> HttpReply:
    answer = arena.call(request.method, request.path, request.body)
    outcomes.record(request.kind, str(answer.status))
    if answer.status >= 500 and answer.status not in _EXPECTED:
        sent = f"{request.method} {request.path} {json.dumps(request.body):.1000}"
        outcomes.add_problem(f"{request.kind}: {answer.status}", f"{source}: {sent}")
    return answer
