"""Routes of the server itself: its status, health, metrics and OpenAPI document. [I/O]"""

import asyncio
from datetime import UTC, datetime
from functools import cache, partial

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, metrics, responses
from rota.apiserver.access import Action, Caller
from rota.apiserver.api import Api
from rota.apiserver.openapi.document import build_document
from rota.apiserver.openapi.fields import Schema
from rota.apiserver.responses import api_of, caller_of, json_response
from rota.apiserver.views import certificates
from rota.apiserver.views.pages import Json
from rota.engine.parking import FaultStage, Parked
from rota.engine.run import Engine
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId

PARKED_SHOWN_MAX = 100  # as many keys may be parked as there are jobs
JOBS_AT_ONCE = 2000  # counted before other requests are served
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def show_server(request: Request) -> Response:
    """The status of this server; also while its store fails, which the answer says."""
    api = api_of(request)
    engine, commits = api.engine, api.engine.commit_stats
    shown = {
        "version": api.version,
        **_leadership(api),
        "revision": engine.revision,
        "store": engine.store.name,
        "store_median_ms": commits.median_ms,
        "store_worst_ms": commits.worst_ms,
        "store_problem": commits.problem,
        "is_short_of_disk": engine.mirror.disk_low,
        "started_at_ms": api.started_at_ms,
        **_cluster_summary(engine.mirror, engine.now_ms()),
        **_faults(engine, caller_of(request)),
        **_certificate_status(api),
        "address": api.addresses.http,
        "agent_address": api.addresses.agent,
        "controller_address": api.addresses.controller,
        "controller_addresses": list(dict.fromkeys((api.addresses.controller, *api.controller_addresses()))),
    }
    return json_response(shown)


def _certificate_status(api: Api) -> Json:
    expiries, window, now = api.expiries(), api.authority.renewal_window, datetime.now(UTC)
    ending = certificates.expiry_warnings(api.engine.mirror, expiries, window, now)
    return {
        "certificates": certificates.certificates_json(expiries),
        "certificate_warnings": list(ending.values()),
    }


def _cluster_summary(mirror: Mirror, now_ms: int) -> Json:
    restored = mirror.restored
    refused = {node.spec.name: node.refused for node in mirror.nodes.values() if node.refused is not None}
    return {
        "jobs": len(mirror.jobs),
        "nodes": len(mirror.nodes),
        "adopted_jobs": sum(job.adoption is not None for job in mirror.jobs.values()),
        "waits_for_accept": restored is not None and not restored.accepted,
        "opens_in_ms": max(0, restored.open_at_ms - now_ms) if restored is not None else 0,
        "restored_from_ms": restored.taken_at_ms if restored is not None else None,
        "refused": {name: why.reason for name, why in refused.items()},
    }


def _faults(engine: Engine, caller: Caller) -> Json:
    """Parked keys and counted faults. An error may quote any job: only for callers that see all of them."""
    parked = engine.parking.all()
    shown = parked[:PARKED_SHOWN_MAX] if caller.is_cluster_wide else []
    return {
        "parked_count": len(parked),
        "parked": [_parked_json(key, engine.now_ms()) for key in shown],
        "faults": {stage: engine.parking.counts[stage] for stage in FaultStage},
    }


def _parked_json(parked: Parked, now_ms: int) -> Json:
    return {
        "reconciler": parked.reconciler,
        "key": parked.key,
        "error": parked.error,
        "since_ms": parked.since.wall_ms,
        "times": parked.times,
        "retry_in_ms": None if parked.retry_at_ms is None else max(0, parked.retry_at_ms - now_ms),
    }


def _leadership(api: Api) -> Json:
    """The server's role; of a standby also how far it may lag behind the leader."""
    role = api.standby_role
    if role is not None:
        known = {"leader": role.leader(), "epoch": role.epoch(), "lag_ms": role.age_ms()}
        return {"role": "standby", **known}
    leads = api.engine.healthy
    return {
        "role": "leader" if leads else "none",
        "leader": api.addresses.http if leads else None,
        "epoch": api.engine.epoch,
        "lag_ms": 0,
    }


async def show_health(_: Request) -> Response:
    return json_response({"alive": True})


async def show_readiness(request: Request) -> Response:
    await api_of(request).engine.check()
    return json_response({"ready": True})


async def show_metrics(request: Request) -> Response:
    """Totals over all namespaces: only for callers that may see all of them."""
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.READ)
    totals = metrics.ClusterTotals()
    names = await api.engine.read(lambda mirror: list(mirror.jobs))
    for first in range(0, len(names), JOBS_AT_ONCE):
        await api.engine.read(partial(_add, totals=totals, names=names[first : first + JOBS_AT_ONCE]))
        await asyncio.sleep(0)  # a read alone does not suspend this task while no commit is in progress
    gauges = await api.engine.read(lambda mirror: list(metrics.cluster_metrics(mirror, totals)))
    own = metrics.server_metrics(api.version, api.engine.store.name, _server_figures(api))
    expiries = await api.engine.read(
        lambda mirror: list(metrics.certificate_metrics(api.expiries(), mirror, datetime.now(UTC)))
    )
    faults = metrics.fault_metrics(api.engine.parking.counts)
    body = metrics.render(api.counters, (*own, faults, *gauges, *expiries))
    return Response(body, headers={**responses.COMMON_HEADERS, "Content-Type": PROMETHEUS_TEXT})


def _add(mirror: Mirror, *, totals: metrics.ClusterTotals, names: list[JobId]) -> None:
    totals.add(mirror.jobs[name] for name in names if name in mirror.jobs)


def _server_figures(api: Api) -> dict[str, tuple[str, float]]:
    return {
        "rota_leads": ("1 while it leads and its store works", int(api.engine.healthy)),
        "rota_epoch": ("number of its term", api.engine.epoch),
        "rota_revision": ("number of the last commit", api.engine.revision),
        "rota_parked": (
            "keys and records left alone after a fault of the server",
            len(api.engine.parking.all()),
        ),
        "rota_audit_lines_dropped": ("lines of the audit log that could not be written", api.audit.dropped),
    }


async def show_document(request: Request) -> Response:
    return json_response(_document(api_of(request).version))


@cache  # building it blocks the event loop long enough for other requests to notice
def _document(version: str) -> Schema:
    return build_document(version)


ROUTES = [
    responses.route("GET", "/v1/server", show_server),
    responses.route("GET", "/healthz", show_health),
    responses.route("GET", "/readyz", show_readiness),
    responses.route("GET", "/metrics", show_metrics),
    responses.route("GET", "/v1/openapi.json", show_document),
]
