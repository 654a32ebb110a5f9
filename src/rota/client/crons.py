"""`cluster.crons`: jobs that are submitted on a schedule."""

from collections.abc import Mapping
from typing import Any, Unpack

from rota.client.job import Job
from rota.client.request_fields import CronFields
from rota.client.server_views import Cron
from rota.client.transport import ApiRequest, Transport, matching, new_key, segment
from rota.client.views import JobStatus, listed, read


class Crons:
    """The crons of a cluster, each with a name unique in its namespace."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, namespace: str | None = None) -> list[Cron]:
        """Crons by name, of one namespace or of all, without their runs."""
        answer = self._transport.call(ApiRequest("GET", "/v1/crons", {"namespace": namespace}))
        return [read(Cron, item) for item in listed(answer, "crons")]

    def get(self, name: str, namespace: str | None = None) -> Cron:
        """One cron with its runs, newest first."""
        return read(Cron, self._transport.call(ApiRequest("GET", _path(name), {"namespace": namespace})))

    def create(self, name: str, schedule: str, job: Mapping[str, Any], **options: Unpack[CronFields]) -> Cron:
        """Create a cron for a job spec; options: `zone`, `overlap`, `missed`, `history`, `namespace`."""
        body = {"name": name, "schedule": schedule, "job": dict(job), **options}
        return read(Cron, self._transport.call(ApiRequest("POST", "/v1/crons", body=body)))

    def replace(
        self,
        name: str,
        schedule: str,
        job: Mapping[str, Any],
        *,
        if_etag: str | None = None,
        **options: Unpack[CronFields],
    ) -> Cron:
        """Replace schedule, job and options of a cron; its runs stay."""
        query = {"namespace": options.pop("namespace", None)}
        body = {"schedule": schedule, "job": dict(job), **options}
        request = ApiRequest("PUT", _path(name), query, body=body, headers=matching(if_etag))
        return read(Cron, self._transport.call(request))

    def pause(self, name: str, namespace: str | None = None) -> Cron:
        """Plan no more runs; those that are running go on."""
        return self._do(name, "pause", namespace)

    def resume(self, name: str, namespace: str | None = None) -> Cron:
        """Plan runs again from now on; those missed during the pause are left out."""
        return self._do(name, "resume", namespace)

    def run(self, name: str, namespace: str | None = None, *, key: str | None = None) -> Job:
        """Submit one run now, in addition to the schedule; the same `key` returns the same job."""
        headers = {"Idempotency-Key": key or new_key()}
        request = ApiRequest("POST", f"{_path(name)}/run", {"namespace": namespace}, body={}, headers=headers)
        return Job(self._transport, read(JobStatus, self._transport.call(request)))

    def delete(self, name: str, namespace: str | None = None, *, if_etag: str | None = None) -> None:
        """Delete a cron; its jobs stay and keep running."""
        query = {"namespace": namespace}
        self._transport.call(ApiRequest("DELETE", _path(name), query, headers=matching(if_etag)))

    def _do(self, name: str, verb: str, namespace: str | None) -> Cron:
        request = ApiRequest("POST", f"{_path(name)}/{verb}", {"namespace": namespace}, body={})
        return read(Cron, self._transport.call(request))


def _path(name: str) -> str:
    return f"/v1/crons/{segment(name)}"
