"""A connection to a cluster: submit jobs, list jobs, nodes and events."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO, Self, Unpack

from rota.client.clusters import Clusters
from rota.client.context import Endpoint, resolve, setting
from rota.client.crons import Crons
from rota.client.errors import Rejected, Unavailable
from rota.client.files import sendable
from rota.client.job import Job, find
from rota.client.spec_fields import SpecFields
from rota.client.streams import follow_events, submit_job
from rota.client.transport import OnWait, Pauses, Request, Transport, segment
from rota.client.views import (
    Accepted,
    Brake,
    DrainPlan,
    Event,
    JobStatus,
    JoinToken,
    Namespace,
    Node,
    Outlook,
    Server,
    Token,
    listed,
    read,
)

PATIENCE_SECONDS = 30.0
PAGE_JOBS = 100
BACKUP_SILENCE_SECONDS = 60.0  # a large store is read as a whole before its first byte is sent
COPY_BYTES = 1 << 20


def connect(
    addr: str | None = None, *, token: str | None = None, context: str | None = None, ca: str | None = None
) -> "Cluster":
    """The cluster of the arguments, of ROTA_ADDR, of a context, or the local one, in this order."""
    found = resolve(addr, token, context)
    endpoint = found if ca is None else Endpoint(found.addr, found.token, ca)
    return Cluster(endpoint)


class Cluster:
    """Talks to one server; calls are repeated for `patience_seconds` while it is away."""

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
        headers = {"Idempotency-Key": key or _new_key()}
        answer = self.transport.call(Request("POST", "/v1/jobs", body=_body(spec), headers=headers))
        return Job(self.transport, read(JobStatus, answer))

    def follow_spec(self, spec: Mapping[str, Any], key: str | None = None) -> Iterator[JobStatus]:
        """The job as it was submitted, then each change of it; the last one is final."""
        return submit_job(self.transport, _body(spec), key or _new_key())

    def plan(self, *command: str, **spec: Unpack[SpecFields]) -> Outlook:
        """What would become of a job if it were submitted now; nothing is submitted."""
        return self.plan_spec(_spec(command, spec))

    def plan_spec(
        self,
        spec: Mapping[str, Any],
        add_nodes: Sequence[Mapping[str, Any]] = (),
        without: Sequence[str] = (),
    ) -> Outlook:
        """The same from a whole spec, on a cluster thought of with some nodes more, or without some."""
        body = {**_body(spec), "add_nodes": list(add_nodes), "without": list(without)}
        return read(Outlook, self.transport.call(Request("POST", "/v1/plan", body=body)))

    def job(self, ref: str) -> Job:
        """A job by id, name, or `last`."""
        return find(self.transport, ref)

    def jobs(self, limit: int | None = None, **query: str | list[str] | None) -> Iterator[JobStatus]:
        """Jobs, newest first; `state`, `kind`, `name`, `namespace`, `user`, `cluster` and `label` choose."""
        before, left = None, limit
        while left is None or left > 0:
            page_size = PAGE_JOBS if left is None else min(PAGE_JOBS, left)
            page = self.transport.call(
                Request("GET", "/v1/jobs", {**query, "limit": page_size, "before": before})
            )
            items = listed(page, "jobs")
            yield from (read(JobStatus, item) for item in items)
            before = page.get("next")
            left = None if left is None else left - len(items)
            if before is None:  # an empty page leads on, too: what fits may be rare
                return

    def nodes(self) -> list[Node]:
        answer = self.transport.call(Request("GET", "/v1/nodes"))
        return [read(Node, item) for item in listed(answer, "nodes")]

    def brake(self) -> Brake:
        """Whether the work of nodes that fell silent together is started elsewhere."""
        return read(Brake, self.transport.call(Request("GET", "/v1/brake")))

    def release_brake(self, *refs: str) -> Brake:
        """Say that these nodes, or all that are silent, are gone: their work is started elsewhere."""
        body = {"nodes": list(refs) or None}
        return read(Brake, self.transport.call(Request("POST", "/v1/brake/release", body=body)))

    def node(self, ref: str) -> Node:
        return read(Node, self.transport.call(Request("GET", f"/v1/nodes/{segment(ref)}")))

    def drain(self, ref: str, deadline_seconds: float | None = None, *, force: bool = False) -> Node:
        """Give a node no new tasks; what it has may end, or moves at the deadline. `force` spares nothing."""
        body = {"deadline_seconds": deadline_seconds, **({"force": True} if force else {})}
        return self._change(ref, "drain", body)

    def plan_drain(self, *refs: str, force: bool = False) -> DrainPlan:
        """Where the work of these nodes would go if they were drained now; nothing is changed."""
        body = {"nodes": list(refs), "force": force}
        return read(DrainPlan, self.transport.call(Request("POST", "/v1/plan/drain", body=body)))

    def cordon(self, ref: str) -> Node:
        """Give a node no new tasks; what it has goes on."""
        return self._change(ref, "cordon", {})

    def open(self, ref: str) -> Node:
        """Undo drain and cordon."""
        return self._change(ref, "open", {})

    def taint(self, ref: str, *taints: str) -> Node:
        """Keep work off a node that does not tolerate these: `key` or `key=value`."""
        return self._patch(ref, {"taint": list(taints)})

    def untaint(self, ref: str, *taints: str) -> Node:
        """Take taints off a node, by key or as a whole."""
        return self._patch(ref, {"untaint": list(taints)})

    def forget_node(self, ref: str) -> None:
        """Forget a node that is lost or has left."""
        self.transport.call(Request("DELETE", f"/v1/nodes/{segment(ref)}"))

    def join_token(self, **wishes: Any) -> JoinToken:
        """The right of one machine to join: `labels`, `cluster`, `valid_seconds`, `local`."""
        said = {name: value for name, value in wishes.items() if value is not None}
        return read(JoinToken, self.transport.call(Request("POST", "/v1/join-tokens", body=said)))

    def tokens(self) -> list[Token]:
        """Who may use the API, without the secrets."""
        answer = self.transport.call(Request("GET", "/v1/tokens"))
        return [read(Token, item) for item in listed(answer, "tokens")]

    def make_token(
        self, name: str, role: str, *namespaces: str, valid_seconds: str | float | None = None
    ) -> Token:
        """A token for somebody else, everywhere unless namespaces are named; its secret is told this once."""
        body: dict[str, Any] = {"name": name, "role": role, "namespaces": list(namespaces) or ["*"]}
        body |= {} if valid_seconds is None else {"valid_seconds": valid_seconds}
        return read(Token, self.transport.call(Request("POST", "/v1/tokens", body=body)))

    def revoke_token(self, token_id: str) -> None:
        """It is refused from its next request on."""
        self.transport.call(Request("DELETE", f"/v1/tokens/{segment(token_id)}"))

    def namespaces(self) -> list[Namespace]:
        """Those for which something is set, and those whose jobs hold something or wait."""
        answer = self.transport.call(Request("GET", "/v1/namespaces"))
        return [read(Namespace, item) for item in listed(answer, "namespaces")]

    def namespace(self, name: str) -> Namespace:
        return read(Namespace, self.transport.call(Request("GET", f"/v1/namespaces/{segment(name)}")))

    def set_namespace(self, name: str, quota: Mapping[str, Any] | None = None, weight: int = 1) -> Namespace:
        """What its jobs may hold together, as a whole: what is left out is not limited."""
        body = {"quota": dict(quota or {}), "weight": weight}
        return read(
            Namespace, self.transport.call(Request("PUT", f"/v1/namespaces/{segment(name)}", body=body))
        )

    def forget_namespace(self, name: str) -> None:
        """Take quota and weight off a namespace; its jobs go on."""
        self.transport.call(Request("DELETE", f"/v1/namespaces/{segment(name)}"))

    def events(self, limit: int | None = None, **query: str | None) -> list[Event]:
        """Past events; `since`, `job`, `node` and `kind` choose among them."""
        answer = self.transport.call(Request("GET", "/v1/events", {**query, "limit": limit}))
        return [read(Event, item) for item in listed(answer, "events")]

    def watch(self, since: str | None = None, **query: str | None) -> Iterator[Event]:
        """Events as they happen, from `since` or from now on."""
        return follow_events(self.transport, since, **query)

    def server(self) -> Server:
        return read(Server, self.transport.call(Request("GET", "/v1/server")))

    def back_up(self, into: BinaryIO) -> None:
        """Write a backup of all the server keeps, as of one moment; `rota store check` says if it is good."""
        pauses = Pauses(self.transport.patience_seconds, self.transport.on_wait)
        begun = False
        while True:
            try:
                for piece in self._backup():
                    begun = True
                    into.write(piece)
                return
            except Unavailable as problem:
                if begun:  # half of it is written: another would not fit to it
                    raise
                pauses.wait(problem)

    def accept_nodes(self) -> Accepted:
        """Say that no other server leads the nodes that are refused here: they may follow this one."""
        return read(Accepted, self.transport.call(Request("POST", "/v1/store/accept", body={})))

    def _backup(self) -> Iterator[bytes]:
        request = Request("GET", "/v1/store/backup", headers={"Accept": "application/octet-stream"})
        with self.transport.download(request, BACKUP_SILENCE_SECONDS) as body:
            while piece := body.read(COPY_BYTES):
                yield piece

    def _patch(self, ref: str, body: Mapping[str, Any]) -> Node:
        return read(Node, self.transport.call(Request("PATCH", f"/v1/nodes/{segment(ref)}", body=body)))

    def _change(self, ref: str, verb: str, body: Mapping[str, Any]) -> Node:
        return read(Node, self.transport.call(Request("POST", f"/v1/nodes/{segment(ref)}/{verb}", body=body)))


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


def _new_key() -> str:
    """Without a key of its own a submit could not be repeated when its answer is lost."""
    return os.urandom(16).hex()


def _refuse_what_is_no_text(spec: Mapping[str, Any]) -> None:
    """Bytes of a command line that are no UTF-8 cannot travel: say which field has them."""
    for name, value in spec.items():
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            shown = error.object[error.start : error.end].encode(errors="surrogateescape")
            problem = f"{name}: the byte {shown!r} is not UTF-8"
            raise Rejected("bad_field", problem, field=name, hint="write it as UTF-8 text") from None
