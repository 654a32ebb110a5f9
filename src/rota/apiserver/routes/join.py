"""Routes of join tokens, of enrolment as a node or watcher, and of watchers. [I/O]"""

import asyncio
import ipaddress
import secrets
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, leader_proxy, responses
from rota.apiserver.access import Action
from rota.apiserver.admission.clusters import check_join_cluster
from rota.apiserver.admission.node_actions import delete_node_records, enroll_node
from rota.apiserver.api import Api, host_of, wall_ms
from rota.apiserver.lookup import find_node
from rota.apiserver.openapi.server import JOIN_TOKEN_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.spec import fields
from rota.apiserver.views import jobs, pages
from rota.engine.state.mirror import Mirror
from rota.identity import tokens
from rota.identity.errors import IdentityRefused, JoinRefused
from rota.identity.tokens import JoinedWatcher, JoinLine, JoinRole, StoredJoinToken
from rota.identity.vault import DAY_MS, JOIN_TOKEN_LIFE_MS
from rota.model.amounts import parse_seconds
from rota.model.cluster import DEFAULT
from rota.model.errors import BadField, Conflict, NotAllowed, NotFound, Rejected
from rota.model.limits import JOIN_ADDRESSES_MAX
from rota.model.node import NodeSpec

CSR_BYTES_MAX = 16_384  # as the authority accepts
HTTPS_PORT = 443
JOIN_TOKENS_PAGE_MAX = 10_000  # all that there may be
_COMMANDS = {JoinRole.NODE: "agent", JoinRole.WATCHER: "watcher"}
_NEW_WATCHER_TOKEN = "make a new one: rota watcher token"


async def make_join_token(request: Request) -> Response:
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.ADD_NODES)
    known = ("labels", "cluster", "valid_seconds", "local", "role", "addresses")
    body = fields.known_fields(await json_body(request), known)
    labels = fields.granted_labels("labels", body.get("labels", {}))
    cluster = fields.name("cluster", body.get("cluster", DEFAULT))
    cluster_labels = await api.engine.read(lambda mirror: _cluster_labels(mirror, cluster))
    valid_ms = _parse_valid_ms(body.get("valid_seconds", JOIN_TOKEN_LIFE_MS / 1000))
    role = _parse_role(body.get("role"))
    networks = _parse_networks(body.get("addresses", []))
    # Refused here rather than on the other machine, where the join would only time out.
    if api.addresses.loopback_only and body.get("local") is not True:
        raise Conflict(
            "this server listens on loopback only: no other machine could join", hint="rota dev --listen ADDR"
        )
    now_ms = wall_ms()
    secret = await asyncio.to_thread(
        api.vault.make_join_token,
        now_ms,
        labels={**cluster_labels, **labels},
        cluster=cluster,
        valid_ms=valid_ms,
        role=role,
        addresses=networks,
    )
    address = api.addresses.http
    line = JoinLine(host_of(address), _port(address), secret, api.authority.fingerprint)
    set_audit_target(request, f"cluster {cluster}")
    shown = {
        "id": StoredJoinToken.id_of(secret),
        "token": secret,
        "ca": api.authority.fingerprint,
        "address": address,
        "line": f"rota {_COMMANDS[role]} --join '{line.render()}'",
        "expires_at_ms": now_ms + valid_ms,
    }
    return json_response(shown, 201)


async def list_join_tokens(request: Request) -> Response:
    access.require_cluster_wide(caller_of(request), Action.ADD_NODES)
    page_request = pages.parse_page_request(
        request.query_params, JOIN_TOKEN_FIELDS, "id", most=JOIN_TOKENS_PAGE_MAX
    )
    known, now_ms = api_of(request).vault.list_join_tokens(), wall_ms()
    found, after = pages.paginate(known, lambda token: token.id, page_request)
    shown = [pages.pick_fields(_token_json(token, now_ms), page_request.only) for token in found]
    return json_response({"join_tokens": shown, "next": after})


async def revoke_join_token(request: Request) -> Response:
    """Revoke an unused join token."""
    api, ref = api_of(request), request.path_params["ref"]
    access.require_cluster_wide(caller_of(request), Action.ADD_NODES)
    set_audit_target(request, f"join token {fields.printable(ref)}")
    # In a thread: the vault reads files.
    token = await asyncio.to_thread(api.vault.revoke_join_token, ref)
    if token is None:
        raise NotFound(f"no join token has the id '{fields.printable(ref)}'", hint="see GET /v1/join-tokens")
    if token.used_by is not None:
        remedy = "rota watcher delete" if token.role is JoinRole.WATCHER else "rota node revoke"
        hint = f"cut off what has joined by it: {remedy} {token.used_by}"
        raise Conflict(f"join token {token.id} was used already", hint=hint)
    return no_content()


def _token_json(token: StoredJoinToken, now_ms: int) -> jobs.Json:
    return {
        "id": token.id,
        "state": _token_state(token, now_ms),
        "role": token.role.value,
        "cluster": token.cluster,
        "labels": token.labels,
        "addresses": token.addresses,
        "made_at_ms": token.made_at_ms,
        "expires_at_ms": token.expires_at_ms,
        "used_by": token.used_by,
    }


def _token_state(token: StoredJoinToken, now_ms: int) -> str:
    if token.used_by is not None:
        return "used"
    if token.revoked:
        return "revoked"
    return "open" if token.expires_at_ms > now_ms else "expired"


def _parse_networks(value: object) -> list[str]:
    hint = f"write at most {JOIN_ADDRESSES_MAX} networks: 10.0.0.0/8, 192.0.2.7, fd00::/8"
    if not isinstance(value, list) or len(value) > JOIN_ADDRESSES_MAX:
        raise BadField("addresses", "is not a list, or too long", hint)
    try:
        return [str(ipaddress.ip_network(fields.text("addresses", text), strict=False)) for text in value]
    except ValueError:
        raise BadField("addresses", "holds an invalid network", hint) from None


def _cluster_labels(mirror: Mirror, cluster: str) -> dict[str, str]:
    """The labels that a cluster gives to all its nodes. Raises if no node may join the cluster."""
    check_join_cluster(mirror, cluster)
    intent = mirror.cluster_intents.get(cluster)
    return {} if intent is None else intent.node_labels


async def enroll(request: Request) -> Response:
    """Register a node or watcher and sign its certificate.

    The join token is used up last, when the certificate is signed: an enrolment that fails before leaves the
    token usable. The node's record is stored first, and is withdrawn if the rest fails.
    """
    api = api_of(request)
    known = ("token", "csr", "name", "machine_id", "labels", "role")
    body = fields.known_fields(await json_body(request), known)
    secret = fields.text("token", body.get("token"))
    csr = fields.text("csr", body.get("csr"), CSR_BYTES_MAX).encode()
    name = fields.name("name", body.get("name"))
    fields.labels("labels", body.get("labels") or {})  # only checked: the node declares them in its hello
    token = await asyncio.to_thread(
        _require_usable_token, api, secret, leader_proxy.origin_of(api.authority, request.scope)
    )
    role = _parse_role(body.get("role"))
    if role is not token.role:
        hint = f"this one is for `rota {_COMMANDS[token.role]}`"
        raise NotAllowed(f"join token is not for a {role}", field="token", hint=hint)
    if role is JoinRole.WATCHER:
        watcher = JoinedWatcher(id=secrets.token_hex(8), name=name, joined_at_ms=wall_ms())
        set_audit_target(request, f"watcher {watcher.id} {watcher.name}")
        certificate = await asyncio.to_thread(_certify_watcher, api, watcher, csr, secret)
        # Only this server's address: a watcher connects to servers, which it learns from the leader, never to
        # other watchers, which agent_addresses() would include.
        return json_response(_enrolled_json(api, watcher.id, name, certificate, [api.addresses.agent]), 201)
    spec = await api.engine.ask(
        "apiserver", lambda view, now: enroll_node(view, name, token.labels, token.cluster, now)
    )
    set_audit_target(request, f"node {spec.id} {spec.name}")
    try:
        certificate = await asyncio.to_thread(_certify_node, api, spec, csr, secret)
    except Rejected:
        # Crash point: a server that dies before this leaves a node that never connects, and can be deleted.
        await _withdraw_node(api, spec)
        raise
    addresses = list(dict.fromkeys((*api.agent_addresses(), api.addresses.agent)))
    return json_response(_enrolled_json(api, spec.id, spec.name, certificate, addresses), 201)


def _enrolled_json(api: Api, own_id: str, name: str, certificate: bytes, addresses: list[str]) -> jobs.Json:
    return {
        "node_id": own_id,
        "name": name,
        "certificate": certificate.decode(),
        "ca": api.authority.ca_pem.decode(),
        "authorities": api.authority.bundle.pem.decode(),
        "agent_address": api.addresses.agent,
        "agent_addresses": addresses,
    }


def _require_usable_token(api: Api, secret: str, origin: str) -> StoredJoinToken:
    digest = tokens.digest(secret)
    now_ms = wall_ms()
    for token in api.vault.list_join_tokens():
        if token.digest == digest and _token_state(token, now_ms) == "open":
            _require_allowed_address(token, origin)
            return token
    try:
        api.vault.use_join_token(secret, "", now_ms)  # raises with the reason
    except JoinRefused as refusal:
        raise NotAllowed(str(refusal), field="token", hint="make a new one: rota node token") from None
    raise NotAllowed("join token cannot be used now", field="token", hint="make a new one: rota node token")


def _require_allowed_address(token: StoredJoinToken, origin: str) -> None:
    if not token.allows(origin):
        named = ", ".join(token.addresses)
        reason = f"join token is not for {fields.printable(origin) or 'an unknown address'}"
        raise NotAllowed(reason, field="token", hint=f"it may be used from {named}")


def _certify_node(api: Api, spec: NodeSpec, csr: bytes, secret: str) -> bytes:
    try:
        # Ordering: signed first, used up last. A request that cannot be signed must not cost the token, and
        # of two enrolments with one token only the first to use it gets its certificate.
        certificate = api.authority.sign_node(csr, spec.id, spec.name, datetime.now(UTC))
        api.vault.use_join_token(secret, spec.id, wall_ms())
    except JoinRefused as refusal:
        raise NotAllowed(str(refusal), field="token", hint="make a new one: rota node token") from None
    except IdentityRefused as refusal:
        raise BadField("csr", str(refusal), "send a PEM certificate request") from None
    return certificate


def _certify_watcher(api: Api, watcher: JoinedWatcher, csr: bytes, secret: str) -> bytes:
    try:
        certificate = api.authority.sign_watcher(csr, watcher.id, datetime.now(UTC))
        api.vault.use_join_token(secret, watcher.id, wall_ms())
        api.vault.add_watcher(watcher.signed_by(api.authority.signer_of(certificate)))
    except JoinRefused as refusal:
        raise NotAllowed(str(refusal), field="token", hint=_NEW_WATCHER_TOKEN) from None
    except IdentityRefused as refusal:
        raise BadField("csr", str(refusal), "send a PEM certificate request") from None
    return certificate


async def _withdraw_node(api: Api, spec: NodeSpec) -> None:
    why = f"node {spec.name} could not be enrolled"
    await api.engine.ask("apiserver", lambda view, _: delete_node_records(find_node(view, spec.id), why))


def _parse_role(value: object) -> JoinRole:
    try:
        return JoinRole.NODE if value is None else JoinRole(str(value))
    except ValueError:
        raise BadField(
            "role", f"'{fields.printable(str(value))}' is not a role", "write node or watcher"
        ) from None


async def list_watchers(request: Request) -> Response:
    access.require_cluster_wide(caller_of(request), Action.ADD_NODES)
    watchers = sorted(api_of(request).vault.list_watchers(), key=lambda watcher: watcher.joined_at_ms)
    return json_response({"watchers": [_watcher_json(watcher) for watcher in watchers]})


def _watcher_json(watcher: JoinedWatcher) -> jobs.Json:
    return {"id": watcher.id, "name": watcher.name, "joined_at_ms": watcher.joined_at_ms}


async def remove_watcher(request: Request) -> Response:
    """Remove a watcher: its certificate is refused from now on, and its agents connect elsewhere."""
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.ADD_NODES)
    ref = request.path_params["ref"]
    set_audit_target(request, f"watcher {ref}")
    if not await asyncio.to_thread(api.vault.remove_watcher, ref):
        raise NotFound(f"no watcher is called '{fields.printable(ref)}'", hint="see GET /v1/watchers")
    return no_content()


def _parse_valid_ms(value: object) -> int:
    seconds = fields.number("valid_seconds", parse_seconds, value, DAY_MS / 1000)
    if seconds < 1:
        raise BadField("valid_seconds", "is too short", "write 1 s to 24h")
    return round(seconds * 1000)


def _port(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else HTTPS_PORT


ROUTES = [
    responses.route("GET", "/v1/join-tokens", list_join_tokens),
    responses.route("POST", "/v1/join-tokens", make_join_token),
    responses.route("DELETE", "/v1/join-tokens/{ref}", revoke_join_token),
    responses.route("POST", "/v1/enroll", enroll),
    responses.route("GET", "/v1/watchers", list_watchers),
    responses.route("DELETE", "/v1/watchers/{ref}", remove_watcher),
]
