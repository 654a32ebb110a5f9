"""The server itself, tokens, and how machines join, as others read them."""

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
    """What went wrong (RFC 9457)."""

    type: Annotated[str, doc("always about:blank: `code` tells problems apart")]
    status: Annotated[int, doc("that of the answer")]
    code: Annotated[str, doc("for programs; the same that the command line prints")]
    title: Annotated[str, doc("the status in words")]
    detail: Annotated[str, doc("what happened, for people")]
    field: Annotated[str | None, doc("which field of the request is to blame")]
    hint: Annotated[str | None, doc("what would be accepted, or what to do")]


class ParkedKey(ResponseModel):
    """What the server leaves alone after a fault of its own."""

    reconciler: Annotated[str, doc("which part of the server failed; load: it could not be read at start")]
    key: Annotated[str, doc("on what: a key of that part, or a job or node as job/12")]
    error: Annotated[str, doc("with what")]
    since_ms: Annotated[int, doc("wall clock")]
    times: Annotated[int, doc("how often in a row")]
    retry_in_ms: Annotated[int | None, doc("until it is tried again; null: at the next start")]


class Certificate(ResponseModel):
    """A certificate that the server uses."""

    name: Annotated[str, doc("server, ca, or the setting that names its file")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int, doc("wall clock")]


class Server(ResponseModel):
    """The server that answers."""

    version: Annotated[str, doc("of Rota")]
    role: Annotated[str, doc("leader, standby, or none while it cannot lead")]
    leader: Annotated[str | None, doc("who leads, host:port")]
    epoch: Annotated[int, doc("number of its term as leader")]
    revision: Annotated[int, doc("number of its last commit")]
    lag_ms: Annotated[int | None, doc("how old what it shows may be; null: it knows nothing yet")]
    store: Annotated[str, doc("where its records are")]
    store_median_ms: Annotated[float | None, doc("how long a commit takes")]
    store_worst_ms: Annotated[float | None, doc("how long the slowest of late took")]
    store_problem: Annotated[str | None, doc("why commits do not reach the store")]
    is_short_of_disk: Annotated[bool, doc("nothing new is taken until there is room")]
    started_at_ms: Annotated[int, doc("wall clock")]
    jobs: Annotated[int, doc("that it keeps")]
    nodes: Annotated[int, doc("that it knows")]
    adopted_jobs: Annotated[int, doc("of its jobs: those that nodes brought back after a restart")]
    waits_for_accept: Annotated[bool, doc("it was restored, and nodes wait for the operator's word")]
    opens_in_ms: Annotated[int, doc("until it greets nodes after a restore")]
    restored_from_ms: Annotated[
        int | None, doc("when the backup was taken that it was restored from, wall clock")
    ]
    refused: Annotated[dict[str, str], doc("nodes that are refused, and why")]
    parked_count: Annotated[int, doc("keys and records that are left alone after a fault of the server")]
    parked: Annotated[list[ParkedKey], doc("the first of them; only for callers who may look everywhere")]
    faults: Annotated[dict[str, int], doc("faults since it was started, by where they happened")]
    certificates: Annotated[list[Certificate], doc("that it uses, and when they expire")]
    certificate_warnings: Annotated[
        list[str], doc("certificates, also of nodes, with less than a fifth of their life left")
    ]
    address: Annotated[str, doc("of this API, host:port")]
    agent_address: Annotated[str, doc("where agents call")]
    controller_address: Annotated[str, doc("where controllers call")]
    controller_addresses: Annotated[list[str], doc("the same of all servers")]


class Accepted(ResponseModel):
    """Nodes may follow a restored server."""

    epoch: Annotated[int, doc("with which they do")]
    open_in_ms: Annotated[int, doc("until they are greeted")]


class Token(ResponseModel):
    """The right to use the API, without its secret."""

    id: Annotated[str, doc("by which it is revoked")]
    name: Annotated[str, doc("of whom it stands for: jobs and the audit log say it")]
    role: Annotated[str, doc(f"one of {', '.join(Role)}")]
    namespaces: Annotated[list[str], doc("where it is good; `*`: everywhere")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int | None, doc("wall clock; null: never")]
    last_used_at_ms: Annotated[int | None, doc("to the minute, at the server that answers; null: never")]


class NewToken(Token):
    """A token right after it was made."""

    token: Annotated[str, doc("the secret; it is told once")]


class TokenPage(ResponseModel):
    """One page of tokens."""

    tokens: Annotated[list[Token], doc("by id")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class TokenBody(RequestModel):
    """What a token is to be good for."""

    name: Annotated[str, doc("of its user or program; no other valid token may have it")]
    role: Annotated[str, doc(f"one of {', '.join(Role)}")]
    namespaces: Annotated[list[str], doc("where it is good; `*`: everywhere")] = field(
        default_factory=lambda: ["*"]
    )
    valid_seconds: Annotated[float | int | str | None, doc("for how long: `720h`; null: until revoked")] = (
        None
    )
    replaces: Annotated[str | None, doc("the id of a valid token of the same name, its predecessor")] = None


class JoinToken(ResponseModel):
    """The right of one machine to join, for a while."""

    id: Annotated[str, doc("by which it is revoked")]
    token: Annotated[str, doc("the secret; it is told once, and good once")]
    ca: Annotated[str, doc("fingerprint of the cluster's authority")]
    address: Annotated[str, doc("where to join")]
    line: Annotated[str, doc("what to type on the machine")]
    expires_at_ms: Annotated[int, doc("wall clock")]


class JoinTokenBody(RequestModel):
    """What the node is to be."""

    labels: Annotated[dict[str, str], doc("of the node")] = field(default_factory=dict)
    cluster: Annotated[str, doc("to which it is to belong")] = "default"
    valid_seconds: Annotated[float | int | str, doc("for how long: `30m`, at most 24 h")] = 1800
    local: Annotated[bool, doc("it is this machine, though the server listens on loopback only")] = False
    role: Annotated[str, doc("`node`, or `watcher`: it holds the connections of agents")] = "node"
    addresses: Annotated[
        list[str], doc("networks from which it may be used: `10.0.0.0/8`; empty: from everywhere")
    ] = field(default_factory=list)


class ListedJoinToken(ResponseModel):
    """The right of one machine to join, without its secret."""

    id: Annotated[str, doc("by which it is revoked")]
    state: Annotated[str, doc("open, used, revoked or expired")]
    role: Annotated[str, doc("what its holder becomes: node or watcher")]
    cluster: Annotated[str, doc("to which it is to belong")]
    labels: Annotated[dict[str, str], doc("that the node is granted")]
    addresses: Annotated[list[str], doc("networks from which it may be used; empty: from everywhere")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int, doc("wall clock")]
    used_by: Annotated[str | None, doc("id of the node or watcher that has joined by it")]


class JoinTokenPage(ResponseModel):
    """One page of join tokens; they are listed until a day after they have expired."""

    join_tokens: Annotated[list[ListedJoinToken], doc("by id")]
    next: Annotated[str | None, doc("send it as `after` for the next page; null: there is none")]


class Authority(ResponseModel):
    """Who signs certificates of nodes."""

    ca: Annotated[str, doc("its certificate, PEM")]
    fingerprint: Annotated[str, doc("sha256 of it")]
    trusted: Annotated[
        list[str], doc("PEM: this one and, while the CA is rotated, the one before; trust all of them")
    ]


class TrustedAuthority(ResponseModel):
    """An authority that is trusted now."""

    fingerprint: Annotated[str, doc("sha256 of its certificate")]
    made_at_ms: Annotated[int, doc("wall clock")]
    expires_at_ms: Annotated[int, doc("wall clock")]
    signs: Annotated[
        bool, doc("false: it is being rotated out, and signs for agents of older releases alone")
    ]


class RetiredAuthority(ResponseModel):
    """An authority that is trusted no more."""

    fingerprint: Annotated[str, doc("sha256 of its certificate")]
    retired_at_ms: Annotated[int, doc("wall clock")]


class CaRotation(ResponseModel):
    """The cluster's authorities, and what still depends on the previous one."""

    phase: Annotated[str, doc("`stable`, or `overlap`: two are trusted")]
    authorities: Annotated[list[TrustedAuthority], doc("that are trusted now, the one that signs first")]
    started_at_ms: Annotated[int | None, doc("of the rotation under way; wall clock")]
    overlap_until_ms: Annotated[int | None, doc("when the previous one is to be trusted no more; wall clock")]
    dependents: Annotated[int, doc("how many nodes and watchers have a certificate of the previous one")]
    nodes: Annotated[list[str], doc("of these: connected nodes, at most 1000")]
    away: Annotated[list[str], doc("of these: nodes that are not connected and may come back, at most 1000")]
    watchers: Annotated[list[str], doc("of these: watchers, at most 1000")]
    retired: Annotated[list[RetiredAuthority], doc("the newest first; the last 8 are kept")]


class CaRotationBody(RequestModel):
    """How a rotation is to go."""

    overlap_seconds: Annotated[
        float | int | str | None,
        doc(
            "how long the previous authority stays trusted: `90d`; without it for as long as a node's "
            "certificate can be used and, once expired, renewed"
        ),
    ] = None


class CaFinishBody(RequestModel):
    """How a rotation is to end."""

    force: Annotated[bool, doc("even if nodes or watchers depend on the previous authority")] = False


class Enrolled(ResponseModel):
    """What a new node needs to call."""

    node_id: Annotated[str, doc("never given to another; of a watcher its own")]
    name: Annotated[str, doc("as people call it")]
    certificate: Annotated[str, doc("PEM, for a day; of a watcher for 30")]
    ca: Annotated[str, doc("the authority's certificate, PEM")]
    authorities: Annotated[str, doc("PEM: all that are trusted, and links by which one vouches for the next")]
    agent_address: Annotated[str, doc("where agents call")]
    agent_addresses: Annotated[list[str], doc("the same of all watchers and servers")]


class EnrollBody(RequestModel):
    """A machine that wants to be a node."""

    token: Annotated[str, doc("a join token")]
    csr: Annotated[str, doc("a certificate request, PEM, of a key made on the machine")]
    name: Annotated[str, doc("as people shall call it")]
    machine_id: Annotated[Any, doc("not needed")] = None
    labels: Annotated[dict[str, str] | None, doc("self-declared; they come again with its first word")] = None
    role: Annotated[str | None, doc("for which the token was made: `node` or `watcher`")] = None


class Watcher(ResponseModel):
    """A process that holds connections of agents for the leader."""

    id: Annotated[str, doc("never given to another")]
    name: Annotated[str, doc("as people call it")]
    joined_at_ms: Annotated[int, doc("wall clock")]


class WatcherList(ResponseModel):
    """All watchers of the cluster."""

    watchers: Annotated[list[Watcher], doc("that have joined, the oldest first")]


TOKEN_KEY = Parameter("Idempotency-Key", "the same key and body give the same token", where="header")
TOKEN_FIELDS = Token.__struct_fields__
JOIN_TOKEN_FIELDS = ListedJoinToken.__struct_fields__

OPERATIONS = (
    Operation("GET", "/v1/server", "the server that answers", Server),
    Operation("GET", "/v1/store/backup", "everything, as of one moment", "application/octet-stream"),
    Operation("POST", "/v1/store/accept", "let nodes follow a restored server", Accepted, body=EmptyBody),
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
        "make a token; its secret is told once",
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
    Operation("POST", "/v1/join-tokens", "let one machine join", JoinToken, 201, body=JoinTokenBody),
    Operation("DELETE", "/v1/join-tokens/{ref}", "revoke one that was not used", None, 204),
    Operation("GET", "/v1/ca", "the cluster's authority", Authority),
    Operation(
        "GET", "/v1/ca/rotation", "which authorities are trusted, and what depends on them", CaRotation
    ),
    Operation("POST", "/v1/ca/rotation", "rotate the authority", CaRotation, 201, body=CaRotationBody),
    Operation("POST", "/v1/ca/rotation/finish", "end the overlap", CaRotation, body=CaFinishBody),
    Operation("POST", "/v1/ca/replace", "trust nothing that was signed before", CaRotation, body=EmptyBody),
    Operation("POST", "/v1/enroll", "become a node or a watcher", Enrolled, 201, body=EnrollBody),
    Operation("GET", "/v1/watchers", "list watchers", WatcherList),
    Operation("DELETE", "/v1/watchers/{ref}", "remove a watcher", None, 204),
)
