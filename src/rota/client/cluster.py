"""A connection to a cluster: submit jobs, list and watch them, and hear what happens."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack

from rota.client.access import Access
from rota.client.backoff import OnWait
from rota.client.clusters import Clusters
from rota.client.context import Endpoint, resolve, setting
from rota.client.crons import Crons
from rota.client.errors import Rejected
from rota.client.files import sendable
from rota.client.job import Job, find
from rota.client.nodes import Nodes
from rota.client.server_admin import Upkeep
from rota.client.spec_fields import SpecFields
from rota.client.streams import follow_entries, follow_events, submit_job
from rota.client.transport import ApiRequest, Transport, new_key
from rota.client.views import Change, Event, JobStatus, Outlook, listed, read, with_needed

PATIENCE_SECONDS = 30.0
PAGE_JOBS = 1000  # the most that the server gives: each request looks through all jobs


def connect(
    addr: str | None = None, *, token: str | None = None, context: str | None = None, ca: str | None = None
) -> "Cluster":
    """The cluster of the arguments, of ROTA_ADDR, of a context, or the local one, in this order."""
    found = resolve(addr, token, context)
    endpoint = found if ca is None else Endpoint(found.addr, found.token, ca)
    return Cluster(endpoint)


class Cluster(Nodes, Access, Upkeep):
    """Talks to the server that leads; calls are repeated for `timeout_seconds` while none does."""

    def __init__(
        self, endpoint: Endpoint, patience_seconds: float = PATIENCE_SECONDS, on_wait: OnWait | None = None
    ) -> None:
        self.transport = Transport(endpoint, patience_seconds, on_wait)
        self.crons = Crons(self.transport)
        self.clusters = Clusters(self.transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; `with` does so at the end."""
        self.transport.close()

    def submit(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> Job:
        """Submit a job; the same `key` and spec give the same job, however often it is sent."""
        return self.submit_spec(_spec(command, spec), key)

    def run(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> Job:
        """Submit a job and wait until it has ended: `submit` and `wait` in one request."""
        statuses = self.follow_spec(_spec(command, spec), key)
        job = Job(self.transport, next(statuses))
        for status in statuses:
            job.status = status
        return job

    def submit_spec(self, spec: Mapping[str, Any], key: str | None = None) -> Job:
        """Submit a job from a whole spec, as a job file holds it."""
        headers = {"Idempotency-Key": key or new_key()}
        answer = self.transport.call(ApiRequest("POST", "/v1/jobs", body=_body(spec), headers=headers))
        return Job(self.transport, read(JobStatus, answer))

    def follow_spec(self, spec: Mapping[str, Any], key: str | None = None) -> Iterator[JobStatus]:
        """The job as it was submitted, then each change of it; the last one is final."""
        return submit_job(self.transport, _body(spec), key or new_key())

    def plan(self, *command: str, **spec: Unpack[SpecFields]) -> Outlook:
        """What would become of a job if it were submitted now; nothing is submitted."""
        return self.plan_spec(_spec(command, spec))

    def plan_spec(
        self,
        spec: Mapping[str, Any],
        add_nodes: Sequence[Mapping[str, Any]] = (),
        without: Sequence[str] = (),
        *,
        scale: bool = False,
    ) -> Outlook:
        """The same from a whole spec, on a cluster thought of with some nodes more, or without some;
        with `scale` also which one would grow for it by itself."""
        thought = {
            "add_nodes": list(add_nodes),
            "without": list(without),
            **({"scale": True} if scale else {}),
        }
        body = {**_body(spec), **thought}
        return read(Outlook, self.transport.call(ApiRequest("POST", "/v1/plan", body=body)))

    def job(self, ref: str) -> Job:
        """A job by id, name, or `last`."""
        return find(self.transport, ref)

    def jobs(
        self, limit: int | None = None, fields: str | None = None, **query: str | list[str] | None
    ) -> Iterator[JobStatus]:
        """Jobs, newest first; `state`, `kind`, `name`, `namespace`, `user`, `cluster` and `label` choose."""
        for page in self.job_pages(limit, fields, **query):
            yield from page

    def job_pages(
        self, limit: int | None = None, fields: str | None = None, **query: str | list[str] | None
    ) -> Iterator[list[JobStatus]]:
        """The same as `jobs`, as many at a time as one answer of the server holds."""
        asked = {**query, "fields": with_needed(JobStatus, fields)}
        after, left = query.get("after"), limit
        while left is None or left > 0:
            page_size = PAGE_JOBS if left is None else min(PAGE_JOBS, left)
            page = self.transport.call(
                ApiRequest("GET", "/v1/jobs", {**asked, "limit": page_size, "after": after})
            )
            items = listed(page, "jobs")
            yield [read(JobStatus, item) for item in items]
            after = page.get("next")
            left = None if left is None else left - len(items)
            if after is None:  # an empty page leads on, too: what fits may be rare
                return

    def watch_jobs(
        self, since: str | None = None, **query: str | list[str] | None
    ) -> Iterator[Change[JobStatus]]:
        """Jobs as they change, from `since` or from now on, for ever; chosen as by `jobs`."""
        return follow_entries(self.transport, "/v1/jobs", JobStatus, since, query)

    def moment(self) -> str:
        """A sequence number for `since`: list what there is after asking for it, then watch from it."""
        page = self.transport.call(ApiRequest("GET", "/v1/jobs", {"limit": 1, "fields": "id"}))
        return str(page["seq"])

    def events(self, limit: int | None = None, **query: str | None) -> list[Event]:
        """Past events; `since`, `job`, `node`, `cluster` and `kind` choose among them."""
        answer = self.transport.call(ApiRequest("GET", "/v1/events", {**query, "limit": limit}))
        return [read(Event, item) for item in listed(answer, "events")]

    def watch(self, since: str | None = None, **query: str | None) -> Iterator[Event]:
        """Events as they happen, from `since` or from now on."""
        return follow_events(self.transport, since, **query)


def _spec(command: tuple[str, ...], spec: SpecFields) -> dict[str, Any]:
    if not command and not spec.get("steps"):
        raise Rejected(
            "bad_field", "command: there is none", field="command", hint='submit("python", "train.py")'
        )
    return {**spec, "command": list(command)} if command else {**spec}


def _body(spec: Mapping[str, Any]) -> dict[str, Any]:
    namespace = None if "namespace" in spec else setting("namespace", None).value
    body = {**spec, "namespace": namespace} if namespace else dict(spec)
    if isinstance(body.get("deadline"), datetime):  # TOML and YAML know times, JSON does not
        body["deadline"] = body["deadline"].isoformat()
    if isinstance(body.get("files"), Mapping):
        body["files"] = sendable(body["files"])
    _refuse_what_is_no_text(body)
    return body


def _refuse_what_is_no_text(spec: Mapping[str, Any]) -> None:
    """Bytes of a command line that are no UTF-8 cannot travel: say which field has them."""
    for name, value in spec.items():
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            shown = error.object[error.start : error.end].encode(errors="surrogateescape")
            problem = f"{name}: the byte {shown!r} is not UTF-8"
            raise Rejected("bad_field", problem, field=name, hint="write it as UTF-8 text") from None
