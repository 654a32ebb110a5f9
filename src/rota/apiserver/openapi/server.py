"""The server itself, tokens, and how machines join, as others read them."""

from typing import Annotated, Any

from msgspec import field

from rota.apiserver.openapi.jobs import EmptyBody
from rota.apiserver.openapi.words import Answer, Body, Operation, Parameter, list_parameters, said
from rota.identity.tokens import Role


class Problem(Answer):
    """What went wrong (RFC 9457)."""

    type: Annotated[str, said("always about:blank: `code` tells problems apart")]
    status: Annotated[int, said("that of the answer")]
    code: Annotated[str, said("for programs; the same that the command line prints")]
    title: Annotated[str, said("the status in words")]
    detail: Annotated[str, said("what happened, for people")]
    field: Annotated[str | None, said("which field of the request is to blame")]
    hint: Annotated[str | None, said("what would be accepted, or what to do")]


class Parked(Answer):
    """What the server leaves alone after a fault of its own."""

    reconciler: Annotated[str, said("which part of the server failed; load: it could not be read at start")]
    key: Annotated[str, said("on what: a key of that part, or a job or node as job/12")]
    error: Annotated[str, said("with what")]
    since_ms: Annotated[int, said("wall clock")]
    times: Annotated[int, said("how often in a row")]
    retry_in_ms: Annotated[int | None, said("until it is tried again; null: at the next start")]


class Certificate(Answer):
    """A certificate that the server uses."""

    name: Annotated[str, said("server, ca, or the setting that names its file")]
    made_at_ms: Annotated[int, said("wall clock")]
    expires_at_ms: Annotated[int, said("wall clock")]


class Server(Answer):
    """The server that answers."""

    version: Annotated[str, said("of Rota")]
    role: Annotated[str, said("leader, standby, or none while it cannot lead")]
    leader: Annotated[str | None, said("who leads, host:port")]
    epoch: Annotated[int, said("number of its term as leader")]
    revision: Annotated[int, said("number of its last commit")]
    lag_ms: Annotated[int | None, said("how old what it shows may be; null: it knows nothing yet")]
    store: Annotated[str, said("where its records are")]
    store_median_ms: Annotated[float | None, said("how long a commit takes")]
    store_worst_ms: Annotated[float | None, said("how long the slowest of late took")]
    store_problem: Annotated[str | None, said("why commits do not reach the store")]
    is_short_of_disk: Annotated[bool, said("nothing new is taken until there is room")]
    started_at_ms: Annotated[int, said("wall clock")]
    jobs: Annotated[int, said("that it keeps")]
    nodes: Annotated[int, said("that it knows")]
    adopted_jobs: Annotated[int, said("of its jobs: those that nodes brought back after a restart")]
    waits_for_accept: Annotated[bool, said("it was restored, and nodes wait for the operator's word")]
    opens_in_ms: Annotated[int, said("until it greets nodes after a restore")]
    restored_from_ms: Annotated[
        int | None, said("when the backup was taken that it was restored from, wall clock")
    ]
    refused: Annotated[dict[str, str], said("nodes that are refused, and why")]
    parked_count: Annotated[int, said("keys and records that are left alone after a fault of the server")]
    parked: Annotated[list[Parked], said("the first of them; only for callers who may look everywhere")]
    faults: Annotated[dict[str, int], said("faults since it was started, by where they happened")]
    certificates: Annotated[list[Certificate], said("that it uses, and when they expire")]
    certificate_warnings: Annotated[
        list[str], said("certificates, also of nodes, with less than a fifth of their life left")
    ]
    address: Annotated[str, said("of this API, host:port")]
    agent_address: Annotated[str, said("where agents call")]
    controller_address: Annotated[str, said("where controllers call")]
    controller_addresses: Annotated[list[str], said("the same of all servers")]


class Accepted(Answer):
    """Nodes may follow a restored server."""

    epoch: Annotated[int, said("with which they do")]
    open_in_ms: Annotated[int, said("until they are greeted")]


class Token(Answer):
    """The right to use the API, without its secret."""

    id: Annotated[str, said("by which it is revoked")]
    name: Annotated[str, said("of whom it stands for: jobs and the audit log say it")]
    role: Annotated[str, said(f"one of {', '.join(Role)}")]
    namespaces: Annotated[list[str], said("where it is good; `*`: everywhere")]
    made_at_ms: Annotated[int, said("wall clock")]
    expires_at_ms: Annotated[int | None, said("wall clock; null: never")]
    last_used_at_ms: Annotated[int | None, said("to the minute, at the server that answers; null: never")]


class NewToken(Token):
    """A token right after it was made."""

    token: Annotated[str, said("the secret; it is told once")]


class TokenPage(Answer):
    """One page of tokens."""

    tokens: Annotated[list[Token], said("by id")]
    next: Annotated[str | None, said("send it as `after` for the next page; null: there is none")]


class TokenBody(Body):
    """What a token is to be good for."""

    name: Annotated[str, said("of its user or program; no other valid token may have it")]
    role: Annotated[str, said(f"one of {', '.join(Role)}")]
    namespaces: Annotated[list[str], said("where it is good; `*`: everywhere")] = field(
        default_factory=lambda: ["*"]
    )
    valid_seconds: Annotated[float | int | str | None, said("for how long: `720h`; null: until revoked")] = (
        None
    )
    replaces: Annotated[str | None, said("the id of a valid token of the same name, its predecessor")] = None


class JoinToken(Answer):
    """The right of one machine to join, for a while."""

    id: Annotated[str, said("by which it is revoked")]
    token: Annotated[str, said("the secret; it is told once, and good once")]
    ca: Annotated[str, said("fingerprint of the cluster's authority")]
    address: Annotated[str, said("where to join")]
    line: Annotated[str, said("what to type on the machine")]
    expires_at_ms: Annotated[int, said("wall clock")]


class JoinTokenBody(Body):
    """What the node is to be."""

    labels: Annotated[dict[str, str], said("of the node")] = field(default_factory=dict)
    cluster: Annotated[str, said("to which it is to belong")] = "default"
    valid_seconds: Annotated[float | int | str, said("for how long: `30m`, at most 24 h")] = 1800
    local: Annotated[bool, said("it is this machine, though the server listens on loopback only")] = False
    role: Annotated[str, said("`node`, or `watcher`: it holds the connections of agents")] = "node"
    addresses: Annotated[
        list[str], said("networks from which it may be used: `10.0.0.0/8`; empty: from everywhere")
    ] = field(default_factory=list)


class ListedJoinToken(Answer):
    """The right of one machine to join, without its secret."""

    id: Annotated[str, said("by which it is revoked")]
    state: Annotated[str, said("open, used, revoked or expired")]
    role: Annotated[str, said("what its holder becomes: node or watcher")]
    cluster: Annotated[str, said("to which it is to belong")]
    labels: Annotated[dict[str, str], said("that the node is granted")]
    addresses: Annotated[list[str], said("networks from which it may be used; empty: from everywhere")]
    made_at_ms: Annotated[int, said("wall clock")]
    expires_at_ms: Annotated[int, said("wall clock")]
    used_by: Annotated[str | None, said("id of the node or watcher that has joined by it")]


class JoinTokenPage(Answer):
    """One page of join tokens; they are listed until a day after they have expired."""

    join_tokens: Annotated[list[ListedJoinToken], said("by id")]
    next: Annotated[str | None, said("send it as `after` for the next page; null: there is none")]


class Authority(Answer):
    """Who signs certificates of nodes."""

    ca: Annotated[str, said("its certificate, PEM")]
    fingerprint: Annotated[str, said("sha256 of it")]
    trusted: Annotated[
        list[str], said("PEM: this one and, while the CA is rotated, the one before; trust all of them")
    ]


class TrustedAuthority(Answer):
    """An authority that is trusted now."""

    fingerprint: Annotated[str, said("sha256 of its certificate")]
    made_at_ms: Annotated[int, said("wall clock")]
    expires_at_ms: Annotated[int, said("wall clock")]
    signs: Annotated[
        bool, said("false: it is being rotated out, and signs for agents of older releases alone")
    ]


class RetiredAuthority(Answer):
    """An authority that is trusted no more."""

    fingerprint: Annotated[str, said("sha256 of its certificate")]
    retired_at_ms: Annotated[int, said("wall clock")]


class CaRotation(Answer):
    """The cluster's authorities, and what still depends on the previous one."""

    phase: Annotated[str, said("`stable`, or `overlap`: two are trusted")]
    authorities: Annotated[list[TrustedAuthority], said("that are trusted now, the one that signs first")]
    started_at_ms: Annotated[int | None, said("of the rotation under way; wall clock")]
    overlap_until_ms: Annotated[
        int | None, said("when the previous one is to be trusted no more; wall clock")
    ]
    dependents: Annotated[int, said("how many nodes and watchers have a certificate of the previous one")]
    nodes: Annotated[list[str], said("of these: connected nodes, at most 1000")]
    away: Annotated[list[str], said("of these: nodes that are not connected and may come back, at most 1000")]
    watchers: Annotated[list[str], said("of these: watchers, at most 1000")]
    retired: Annotated[list[RetiredAuthority], said("the newest first; the last 8 are kept")]


class CaRotationBody(Body):
    """How a rotation is to go."""

    overlap_seconds: Annotated[
        float | int | str | None,
        said(
            "how long the previous authority stays trusted: `90d`; without it for as long as a node's "
            "certificate can be used and, once expired, renewed"
        ),
    ] = None


class CaFinishBody(Body):
    """How a rotation is to end."""

    force: Annotated[bool, said("even if nodes or watchers depend on the previous authority")] = False


class Enrolled(Answer):
    """What a new node needs to call."""

    node_id: Annotated[str, said("never given to another; of a watcher its own")]
    name: Annotated[str, said("as people call it")]
    certificate: Annotated[str, said("PEM, for a day; of a watcher for 30")]
    ca: Annotated[str, said("the authority's certificate, PEM")]
    authorities: Annotated[
        str, said("PEM: all that are trusted, and links by which one vouches for the next")
    ]
    agent_address: Annotated[str, said("where agents call")]
    agent_addresses: Annotated[list[str], said("the same of all watchers and servers")]


class EnrollBody(Body):
    """A machine that wants to be a node."""

    token: Annotated[str, said("a join token")]
    csr: Annotated[str, said("a certificate request, PEM, of a key made on the machine")]
    name: Annotated[str, said("as people shall call it")]
    machine_id: Annotated[Any, said("not needed")] = None
    labels: Annotated[dict[str, str] | None, said("self-declared; they come again with its first word")] = (
        None
    )
    role: Annotated[str | None, said("for which the token was made: `node` or `watcher`")] = None


class Watcher(Answer):
    """A process that holds connections of agents for the leader."""

    id: Annotated[str, said("never given to another")]
    name: Annotated[str, said("as people call it")]
    joined_at_ms: Annotated[int, said("wall clock")]


class Watchers(Answer):
    """All watchers of the cluster."""

    watchers: Annotated[list[Watcher], said("that have joined, the oldest first")]


TOKEN_KEY = Parameter("Idempotency-Key", "the same key and body give the same token", where="header")
TOKEN_FIELDS = Token.__struct_fields__
JOIN_TOKEN_FIELDS = ListedJoinToken.__struct_fields__

OPERATIONS = (
    Operation("GET", "/v1/server", "the server that answers", Server),
    Operation("GET", "/v1/store/backup", "everything, as of one moment", "application/octet-stream"),
    Operation("POST", "/v1/store/accept", "let nodes follow a restored server", Accepted, body=EmptyBody),
    Operation("GET", "/v1/openapi.json", "this document", dict[str, Any]),
    Operation("GET", "/v1/docs", "this document for people", "text/html"),
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
    Operation("GET", "/v1/watchers", "list watchers", Watchers),
    Operation("DELETE", "/v1/watchers/{ref}", "remove a watcher", None, 204),
)
