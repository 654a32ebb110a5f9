"""`rota.connect()` and the cluster it returns: submit, plan, list and watch jobs; read events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack

from rota.client.backoff import OnWait
from rota.client.ca import ClusterCa
from rota.client.clusters import Clusters
from rota.client.context import Endpoint, resolve, setting
from rota.client.crons import Crons
from rota.client.errors import Rejected
from rota.client.files import encode_files
from rota.client.job import Job, find
from rota.client.namespaces import Namespaces
from rota.client.nodes import Nodes
from rota.client.request_fields import SpecFields
from rota.client.server_admin import ServerAdmin
from rota.client.streams import follow_entries, follow_events, submit_job
from rota.client.tokens import JoinTokens, Tokens
from rota.client.transport import ApiRequest, QueryValue, Transport, new_key
from rota.client.views import Change, Event, JobStatus, Outlook, listed, read, with_needed
from rota.client.watchers import Watchers

PATIENCE_SECONDS = 30.0
PAGE_JOBS = 1000  # the server's maximum: each request filters all jobs, so few large pages are cheapest


def connect(
    addr: str | None = None, *, token: str | None = None, context: str | None = None, ca: str | None = None
) -> "Cluster":
    """Connect to the server of the arguments, ROTA_ADDR, a context, or the local context, in this order."""
    found = resolve(addr, token, context)
    endpoint = found if ca is None else Endpoint(found.addr, found.token, ca)
    return Cluster(endpoint)


class Cluster:
    """A connection to a cluster; finds the leader and retries calls for `patience_seconds`.

    Nodes, crons, tokens and the rest are sub-objects: `cluster.nodes.list()`, `cluster.tokens.create(…)`.
    Threads may share a cluster.
    """

    def __init__(
        self, endpoint: Endpoint, patience_seconds: float = PATIENCE_SECONDS, on_wait: OnWait | None = None
    ) -> None:
        self.transport = Transport(endpoint, patience_seconds, on_wait)
        self.crons = Crons(self.transport)
        self.clusters = Clusters(self.transport)
        self.nodes = Nodes(self.transport)
        self.namespaces = Namespaces(self.transport)
        self.tokens = Tokens(self.transport)
        self.join_tokens = JoinTokens(self.transport)
        self.watchers = Watchers(self.transport)
        self.ca = ClusterCa(self.transport)
        self.server = ServerAdmin(self.transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a `with` statement does this at its end."""
        self.transport.close()

    def submit(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> Job:
        """Submit a job; a repeated call with the same `key` and spec returns the same job."""
        return self.submit_spec(_spec(command, spec), key)

    def run(self, *command: str, key: str | None = None, **spec: Unpack[SpecFields]) -> Job:
        """Submit a job and wait until it has ended: `submit` and `wait` in one request."""
        statuses = self.follow_spec(_spec(command, spec), key)
        job = Job(self.transport, next(statuses))
        for status in statuses:
            job.status = status
        return job

    def submit_spec(self, spec: Mapping[str, Any], key: str | None = None) -> Job:
        """Submit a job from a complete spec, as in a job file."""
        # Always with a key: the transport retries, and an answer that was lost must not lead to a second job.
        headers = {"Idempotency-Key": key or new_key()}
        answer = self.transport.call(ApiRequest("POST", "/v1/jobs", body=_body(spec), headers=headers))
        return Job(self.transport, read(JobStatus, answer))

    def follow_spec(self, spec: Mapping[str, Any], key: str | None = None) -> Iterator[JobStatus]:
        """Submit a job and yield its status now and after each change; the last one is final."""
        return submit_job(self.transport, _body(spec), key or new_key())

    def plan(self, *command: str, **spec: Unpack[SpecFields]) -> Outlook:
        """Where and when a job would start if it were submitted now; submits nothing."""
        return self.plan_spec(_spec(command, spec))

    def plan_spec(
        self,
        spec: Mapping[str, Any],
        add_nodes: Sequence[Mapping[str, Any]] = (),
        without: Sequence[str] = (),
        *,
        scale: bool = False,
    ) -> Outlook:
        """Like `plan` for a complete spec, with the nodes `add_nodes` added and `without` removed.

        With `scale` the answer also says which cluster would grow for the job by itself.
        """
        hypothesis = {
            "add_nodes": list(add_nodes),
            "without": list(without),
            **({"scale": True} if scale else {}),
        }
        body = {**_body(spec), **hypothesis}
        return read(Outlook, self.transport.call(ApiRequest("POST", "/v1/plan", body=body)))

    def job(self, ref: str) -> Job:
        """A job by id, name, or `last`."""
        return find(self.transport, ref)

    def jobs(
        self, limit: int | None = None, fields: str | None = None, **query: QueryValue
    ) -> Iterator[JobStatus]:
        """Jobs, newest first; filters: `state`, `kind`, `name`, `namespace`, `user`, `cluster`, `label`."""
        for page in self.job_pages(limit, fields, **query):
            yield from page

    def job_pages(
        self, limit: int | None = None, fields: str | None = None, **query: QueryValue
    ) -> Iterator[list[JobStatus]]:
        """Like `jobs`, one page of the server's answers at a time."""
        filters = {**query, "fields": with_needed(JobStatus, fields)}
        after, left = query.get("after"), limit
        while left is None or left > 0:
            page_size = PAGE_JOBS if left is None else min(PAGE_JOBS, left)
            page = self.transport.call(
                ApiRequest("GET", "/v1/jobs", {**filters, "limit": page_size, "after": after})
            )
            items = listed(page, "jobs")
            yield [read(JobStatus, item) for item in items]
            after = page.get("next")
            left = None if left is None else left - len(items)
            # An empty page may still have a successor: matching jobs may be rare.
            if after is None:
                return

    def watch_jobs(self, since: str | None = None, **query: QueryValue) -> Iterator[Change[JobStatus]]:
        """Changes of jobs, from `since` or from now on, without end; the filters are those of `jobs`."""
        return follow_entries(self.transport, "/v1/jobs", JobStatus, since, query)

    def moment(self) -> str:
        """The current sequence number: take it, then list, then watch from it, and no change is missed."""
        page = self.transport.call(ApiRequest("GET", "/v1/jobs", {"limit": 1, "fields": "id"}))
        return str(page["seq"])

    def events(self, limit: int | None = None, **query: str | None) -> list[Event]:
        """Past events; filters are `since`, `job`, `node`, `cluster` and `kind`."""
        answer = self.transport.call(ApiRequest("GET", "/v1/events", {**query, "limit": limit}))
        return [read(Event, item) for item in listed(answer, "events")]

    def watch(self, since: str | None = None, **query: str | None) -> Iterator[Event]:
        """Events as they happen, from `since` or from now on, without end."""
        return follow_events(self.transport, since, **query)


def _spec(command: tuple[str, ...], spec: SpecFields) -> dict[str, Any]:
    if not command and not spec.get("steps"):
        raise Rejected("bad_field", "command: missing", field="command", hint='submit("python", "train.py")')
    return {**spec, "command": list(command)} if command else {**spec}


def _body(spec: Mapping[str, Any]) -> dict[str, Any]:
    namespace = None if "namespace" in spec else setting("namespace", None).value
    body = {**spec, "namespace": namespace} if namespace else dict(spec)
    if isinstance(body.get("deadline"), datetime):  # TOML and YAML have times, JSON does not
        body["deadline"] = body["deadline"].isoformat()
    if isinstance(body.get("files"), Mapping):
        body["files"] = encode_files(body["files"])
    _reject_non_utf8(body)
    return body


def _reject_non_utf8(spec: Mapping[str, Any]) -> None:
    """Raise Rejected, naming the field, for command-line bytes that are not UTF-8: JSON cannot carry them."""
    for name, value in spec.items():
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            byte = error.object[error.start : error.end].encode(errors="surrogateescape")
            problem = f"{name}: the byte {byte!r} is not UTF-8"
            raise Rejected("bad_field", problem, field=name, hint="write it as UTF-8 text") from None
