"""The crons of a cluster: jobs that are submitted again and again."""

from collections.abc import Mapping
from typing import Any

from rota.client.job import Job
from rota.client.server_views import Cron
from rota.client.transport import ApiRequest, Transport, matching, new_key, segment
from rota.client.views import JobStatus, listed, read


class Crons:
    """Each has a name in its namespace."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, namespace: str | None = None) -> list[Cron]:
        """By name, of one namespace or of all, without their runs."""
        answer = self._transport.call(ApiRequest("GET", "/v1/crons", {"namespace": namespace}))
        return [read(Cron, item) for item in listed(answer, "crons")]

    def get(self, name: str, namespace: str | None = None) -> Cron:
        """With its runs, the newest first."""
        return read(Cron, self._transport.call(ApiRequest("GET", _path(name), {"namespace": namespace})))

    def create(self, name: str, schedule: str, job: Mapping[str, Any], **rules: Any) -> Cron:
        """`job` as a job file holds it; rules are `zone`, `overlap`, `missed`, `history`, `namespace`."""
        body = {"name": name, "schedule": schedule, "job": dict(job), **rules}
        return read(Cron, self._transport.call(ApiRequest("POST", "/v1/crons", body=body)))

    def replace(
        self, name: str, schedule: str, job: Mapping[str, Any], *, if_etag: str | None = None, **rules: Any
    ) -> Cron:
        """The whole of it; its runs stay."""
        query = {"namespace": rules.pop("namespace", None)}
        body = {"schedule": schedule, "job": dict(job), **rules}
        request = ApiRequest("PUT", _path(name), query, body=body, headers=matching(if_etag))
        return read(Cron, self._transport.call(request))

    def pause(self, name: str, namespace: str | None = None) -> Cron:
        """No more runs are planned."""
        return self._do(name, "pause", namespace)

    def resume(self, name: str, namespace: str | None = None) -> Cron:
        """What was planned during the pause is not made up for."""
        return self._do(name, "resume", namespace)

    def run(self, name: str, namespace: str | None = None, *, key: str | None = None) -> Job:
        """Now, besides its schedule; the same `key` gives the same job."""
        headers = {"Idempotency-Key": key or new_key()}
        request = ApiRequest("POST", f"{_path(name)}/run", {"namespace": namespace}, body={}, headers=headers)
        return Job(self._transport, read(JobStatus, self._transport.call(request)))

    def delete(self, name: str, namespace: str | None = None, *, if_etag: str | None = None) -> None:
        """Its jobs stay, and go on."""
        query = {"namespace": namespace}
        self._transport.call(ApiRequest("DELETE", _path(name), query, headers=matching(if_etag)))

    def _do(self, name: str, verb: str, namespace: str | None) -> Cron:
        request = ApiRequest("POST", f"{_path(name)}/{verb}", {"namespace": namespace}, body={})
        return read(Cron, self._transport.call(request))


def _path(name: str) -> str:
    return f"/v1/crons/{segment(name)}"
