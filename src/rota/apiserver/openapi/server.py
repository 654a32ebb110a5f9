"""API description: the server, tokens, the CA, and how machines join."""

from typing import Annotated, Any

from msgspec import field

from rota.apiserver.openapi.fields import (
    Operation,
    Parameter,
    RequestModel,
    ResponseModel,
    doc,
    list_parameters,
)
from rota.apiserver.openapi.jobs import EmptyBody
from rota.identity.tokens import Role


class Problem(ResponseModel):
    """An error (RFC 9457)."""

    type: Annotated[str, doc("always about:blank: `code` identifies the problem")]
    status: Annotated[int, doc("the HTTP status code")]
    code: Annotated[str, doc("for programs; the command line prints the same")]
    title: Annotated[str, doc("the phrase of the status code")]
    detail: Annotated[str, doc("what happened, for people")]
    field: Annotated[str | None, doc("the field of the request that is wrong")]
    hint: Annotated[str | None, doc("what would be accepted, or what to do")]


class ParkedKey(ResponseModel):
    """A key that the server does not process after an internal fault."""

    reconciler: Annotated[
        str, doc("the reconciler that failed; load: the record could not be read at the start")
    ]
    key: Annotated[str, doc("its key, or a job or node such as job/12")]
    error: Annotated[str, doc("the exception")]
    since_ms: Annotated[int, doc("wall clock")]
    times: Annotated[int, doc("number of failures in a row")]
    retry_in_ms: Annotated[int | None, doc("until the next try; null: at the next start")]


class Certificate(ResponseModel):
    """A certificate that the server uses."""

    name: Annotated[str, doc("server, ca, or the setting that names its file")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int, doc("wall clock")]


class Server(ResponseModel):
    """The server that answers."""

    version: Annotated[str, doc("of Rota")]
    role: Annotated[str, doc("leader, standby, or none while it cannot lead")]
    leader: Annotated[str | None, doc("address of the leader, host:port")]
    epoch: Annotated[int, doc("its term of leadership")]
    revision: Annotated[int, doc("number of its last commit")]
    lag_ms: Annotated[int | None, doc("how old its data may be; null: it has none yet")]
    store: Annotated[str, doc("the store of its records")]
    store_median_ms: Annotated[float | None, doc("median time of a commit")]
    store_worst_ms: Annotated[float | None, doc("slowest of the recent commits")]
    store_problem: Annotated[str | None, doc("why commits do not reach the store")]
    is_short_of_disk: Annotated[bool, doc("no new jobs are accepted until there is free disk space")]
    started_at_ms: Annotated[int, doc("wall clock")]
    jobs: Annotated[int, doc("number of stored jobs")]
    nodes: Annotated[int, doc("number of nodes")]
    adopted_jobs: Annotated[int, doc("number of jobs that nodes brought back after a restart")]
    waits_for_accept: Annotated[bool, doc("it was restored, and nodes wait until an operator accepts them")]
    opens_in_ms: Annotated[int, doc("until it accepts nodes after a restore")]
    restored_from_ms: Annotated[
        int | None, doc("when the backup that it was restored from was taken, wall clock")
    ]
    refused: Annotated[dict[str, str], doc("nodes that are refused, and why")]
    parked_count: Annotated[int, doc("number of parked keys and records")]
    parked: Annotated[
        list[ParkedKey], doc("the first of them; only for callers with access to all namespaces")
    ]
    faults: Annotated[dict[str, int], doc("internal faults since its start, by place")]
    certificates: Annotated[list[Certificate], doc("certificates that it uses")]
    certificate_warnings: Annotated[
        list[str], doc("certificates, also of nodes, with less than a fifth of their lifetime left")
    ]
    address: Annotated[str, doc("of this API, host:port")]
    agent_address: Annotated[str, doc("address for agents")]
    controller_address: Annotated[str, doc("address for controllers")]
    controller_addresses: Annotated[list[str], doc("the same for all servers")]


class Accepted(ResponseModel):
    """The confirmation that nodes may follow a restored server."""

    epoch: Annotated[int, doc("its epoch")]
    open_in_ms: Annotated[int, doc("until nodes are accepted")]


class Token(ResponseModel):
    """A token without its secret."""

    id: Annotated[str, doc("its id, by which it can be revoked")]
    name: Annotated[str, doc("the user or program; it is shown in jobs and in the audit log")]
    role: Annotated[str, doc(f"one of {', '.join(Role)}")]
    namespaces: Annotated[list[str], doc("namespaces that it is valid in; `*`: all")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int | None, doc("wall clock; null: never")]
    last_used_at_ms: Annotated[int | None, doc("to the minute, on this server; null: never")]


class NewToken(Token):
    """A token right after it was created."""

    token: Annotated[str, doc("the secret; it is shown once")]


class TokenPage(ResponseModel):
    """One page of tokens."""

    tokens: Annotated[list[Token], doc("by id")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class TokenBody(RequestModel):
    """A new token."""

    name: Annotated[str, doc("of its user or program; no other valid token may have it")]
    role: Annotated[str, doc(f"one of {', '.join(Role)}")]
    namespaces: Annotated[list[str], doc("namespaces that it is valid in; `*`: all")] = field(
        default_factory=lambda: ["*"]
    )
    valid_seconds: Annotated[float | int | str | None, doc("for how long: `720h`; null: until revoked")] = (
        None
    )
    replaces: Annotated[str | None, doc("id of the valid token of the same name that it replaces")] = None


class JoinToken(ResponseModel):
    """A token with which one machine can join."""

    id: Annotated[str, doc("its id, by which it can be revoked")]
    token: Annotated[str, doc("the secret; it is shown once, and can be used once")]
    ca: Annotated[str, doc("fingerprint of the cluster's CA")]
    address: Annotated[str, doc("address of the server")]
    line: Annotated[str, doc("the command to run on the machine")]
    expires_at_ms: Annotated[int, doc("wall clock")]


class JoinTokenBody(RequestModel):
    """A new join token."""

    labels: Annotated[dict[str, str], doc("labels that the node is granted")] = field(default_factory=dict)
    cluster: Annotated[str, doc("the cluster that the node joins")] = "default"
    valid_seconds: Annotated[float | int | str, doc("for how long: `30m`, at most 24 h")] = 1800
    local: Annotated[bool, doc("for this machine, if the server listens on loopback only")] = False
    role: Annotated[str, doc("`node`, or `watcher`: a process that holds connections of agents")] = "node"
    addresses: Annotated[list[str], doc("networks that it may be used from: `10.0.0.0/8`; empty: any")] = (
        field(default_factory=list)
    )


class ListedJoinToken(ResponseModel):
    """A join token without its secret."""

    id: Annotated[str, doc("its id, by which it can be revoked")]
    state: Annotated[str, doc("open, used, revoked or expired")]
    role: Annotated[str, doc("node or watcher")]
    cluster: Annotated[str, doc("the cluster that the node joins")]
    labels: Annotated[dict[str, str], doc("labels that the node is granted")]
    addresses: Annotated[list[str], doc("networks that it may be used from; empty: any")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int, doc("wall clock")]
    used_by: Annotated[str | None, doc("id of the node or watcher that joined with it")]


class JoinTokenPage(ResponseModel):
    """One page of join tokens; they are listed until a day after they have expired."""

    join_tokens: Annotated[list[ListedJoinToken], doc("by id")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class Authority(ResponseModel):
    """The CA of the cluster."""

    ca: Annotated[str, doc("its certificate, PEM")]
    fingerprint: Annotated[str, doc("sha256 of it")]
    trusted: Annotated[
        list[str], doc("PEM: all trusted CAs, which during a rotation include the previous one")
    ]


class TrustedAuthority(ResponseModel):
    """A CA that is trusted now."""

    fingerprint: Annotated[str, doc("sha256 of its certificate")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int, doc("wall clock")]
    signs: Annotated[bool, doc("false: it is being rotated out, and signs only for agents of older releases")]


class RetiredAuthority(ResponseModel):
    """A CA that is no longer trusted."""

    fingerprint: Annotated[str, doc("sha256 of its certificate")]
    retired_at_ms: Annotated[int, doc("wall clock")]


class CaRotation(ResponseModel):
    """The CAs of the cluster, and what still depends on the previous one."""

    phase: Annotated[str, doc("`stable`, or `overlap`: two CAs are trusted")]
    authorities: Annotated[list[TrustedAuthority], doc("trusted CAs, the one that signs first")]
    started_at_ms: Annotated[int | None, doc("start of the current rotation, wall clock")]
    overlap_until_ms: Annotated[int | None, doc("when trust in the previous CA ends, wall clock")]
    dependents: Annotated[int, doc("number of nodes and watchers with a certificate of the previous CA")]
    nodes: Annotated[list[str], doc("of these: connected nodes, at most 1000")]
    away: Annotated[list[str], doc("of these: nodes that are not connected and may return, at most 1000")]
    watchers: Annotated[list[str], doc("of these: watchers, at most 1000")]
    retired: Annotated[list[RetiredAuthority], doc("newest first; the last 8 are kept")]


class CaRotationBody(RequestModel):
    """Settings of a rotation."""

    overlap_seconds: Annotated[
        float | int | str | None,
        doc(
            "how long the previous CA stays trusted: `90d`; default: as long as a certificate of a node can "
            "be used and, once expired, renewed"
        ),
    ] = None


class CaFinishBody(RequestModel):
    """How a rotation is finished."""

    force: Annotated[bool, doc("even if nodes or watchers depend on the previous CA")] = False


class Enrolled(ResponseModel):
    """What a new node or watcher needs to connect."""

    node_id: Annotated[str, doc("id of the node or watcher; it is never reused")]
    name: Annotated[str, doc("its name")]
    certificate: Annotated[str, doc("PEM, valid for a day; for a watcher 30 days")]
    ca: Annotated[str, doc("certificate of the CA, PEM")]
    authorities: Annotated[str, doc("PEM: all trusted CAs, and cross-signed certificates between them")]
    agent_address: Annotated[str, doc("address for agents")]
    agent_addresses: Annotated[list[str], doc("the same for all watchers and servers")]


class EnrollBody(RequestModel):
    """A machine that joins."""

    token: Annotated[str, doc("a join token")]
    csr: Annotated[str, doc("certificate request, PEM, for a key created on the machine")]
    name: Annotated[str, doc("the requested name")]
    machine_id: Annotated[Any, doc("ignored")] = None
    labels: Annotated[
        dict[str, str] | None, doc("declared by its agent; they are sent again in the handshake")
    ] = None
    role: Annotated[str | None, doc("role of the token: `node` or `watcher`")] = None


class Watcher(ResponseModel):
    """A process that holds connections of agents for the leader."""

    id: Annotated[str, doc("its id; it is never reused")]
    name: Annotated[str, doc("its name")]
    joined_at_ms: Annotated[int, doc("wall clock")]


class WatcherList(ResponseModel):
    """All watchers of the cluster."""

    watchers: Annotated[list[Watcher], doc("oldest first")]


TOKEN_KEY = Parameter(
    "Idempotency-Key", "requests with the same key and body create one token", where="header"
)
TOKEN_FIELDS = Token.__struct_fields__
JOIN_TOKEN_FIELDS = ListedJoinToken.__struct_fields__

OPERATIONS = (
    Operation("GET", "/v1/server", "the server that answers", Server),
    Operation("GET", "/v1/store/backup", "a consistent backup of all records", "application/octet-stream"),
    Operation(
        "POST", "/v1/store/accept", "accept that nodes follow a restored server", Accepted, body=EmptyBody
    ),
    Operation("GET", "/v1/openapi.json", "this document", dict[str, Any]),
    Operation("GET", "/metrics", "figures for Prometheus", "text/plain"),
    Operation("GET", "/healthz", "200 while the process answers", dict[str, Any]),
    Operation("GET", "/readyz", "200 while it leads and its store works, else 503", dict[str, Any]),
    Operation(
        "GET",
        "/v1/tokens",
        "list tokens, without their secrets",
        TokenPage,
        query=list_parameters("id", 10_000, "all"),
    ),
    Operation(
        "POST",
        "/v1/tokens",
        "create a token; its secret is shown once",
        NewToken,
        201,
        also=(200,),
        body=TokenBody,
        headers=(TOKEN_KEY,),
    ),
    Operation("DELETE", "/v1/tokens/{ref}", "revoke a token", None, 204),
    Operation(
        "GET",
        "/v1/join-tokens",
        "list join tokens, without their secrets",
        JoinTokenPage,
        query=list_parameters("id", 10_000, "all"),
    ),
    Operation("POST", "/v1/join-tokens", "create a join token", JoinToken, 201, body=JoinTokenBody),
    Operation("DELETE", "/v1/join-tokens/{ref}", "revoke a join token", None, 204),
    Operation("GET", "/v1/ca", "the CA of the cluster", Authority),
    Operation("GET", "/v1/ca/rotation", "trusted CAs, and what depends on the previous one", CaRotation),
    Operation("POST", "/v1/ca/rotation", "rotate the CA", CaRotation, 201, body=CaRotationBody),
    Operation("POST", "/v1/ca/rotation/finish", "finish a rotation", CaRotation, body=CaFinishBody),
    Operation(
        "POST",
        "/v1/ca/replace",
        "replace the CA without overlap: all earlier certificates become invalid",
        CaRotation,
        body=EmptyBody,
    ),
    Operation("POST", "/v1/enroll", "join as a node or a watcher", Enrolled, 201, body=EnrollBody),
    Operation("GET", "/v1/watchers", "list watchers", WatcherList),
    Operation("DELETE", "/v1/watchers/{ref}", "remove a watcher", None, 204),
)
