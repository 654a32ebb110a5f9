"""The route of figures for Prometheus. [I/O]"""

from datetime import UTC, datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, metrics, responses
from rota.apiserver.access import Action
from rota.apiserver.api import Api
from rota.apiserver.responses import api_of, caller_of
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId

JOBS_AT_ONCE = 2000  # looked at before others have their turn
TEXT_FORM = "text/plain; version=0.0.4; charset=utf-8"


async def show_metrics(request: Request) -> Response:
    """Sums over all namespaces: for those who may look everywhere."""
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.READ)
    standing = metrics.ClusterTotals()
    names = await api.engine.read(lambda mirror: list(mirror.jobs))
    for first in range(0, len(names), JOBS_AT_ONCE):
        await api.engine.read(partial(_add, standing=standing, names=names[first : first + JOBS_AT_ONCE]))
    gauges = await api.engine.read(lambda mirror: list(metrics.cluster_metrics(mirror, standing)))
    own = metrics.server_metrics(api.version, api.engine.store.name, _server_figures(api))
    expiries = await api.engine.read(
        lambda mirror: list(metrics.certificate_metrics(api.expiries(), mirror, datetime.now(UTC)))
    )
    faults = metrics.fault_metrics(api.engine.parking.counts)
    body = metrics.render(api.counters, (*own, faults, *gauges, *expiries))
    return Response(body, headers={**responses.COMMON_HEADERS, "Content-Type": TEXT_FORM})


def _add(mirror: Mirror, *, standing: metrics.ClusterTotals, names: list[JobId]) -> None:
    standing.add(mirror.jobs[name] for name in names if name in mirror.jobs)


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


ROUTES = [responses.route("GET", "/metrics", show_metrics)]
