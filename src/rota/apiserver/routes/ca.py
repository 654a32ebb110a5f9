"""Routes of the cluster's CA: the trusted certificates and their rotation. [I/O]"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, responses
from rota.apiserver.access import Action
from rota.apiserver.api import Api
from rota.apiserver.ca_dependents import CaDependents, find_ca_dependents
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, set_audit_target
from rota.apiserver.spec import fields
from rota.apiserver.views import jobs
from rota.identity import certificates
from rota.identity.errors import NotRotating, Rotating
from rota.identity.keyring import Keyring
from rota.model.amounts import parse_seconds
from rota.model.errors import BadField, Conflict, Unavailable
from rota.model.limits import RENEWAL_WINDOW_SECONDS_MAX

NAMES_SHOWN_MAX = 1_000  # nodes that depend on the previous CA: enough to see what they have in common
_DEPENDENTS_NAMED_MAX = 5  # in a refusal


async def show_ca(request: Request) -> Response:
    """The trusted CAs. Public: a machine that joins compares the fingerprint."""
    authority = api_of(request).authority
    trusted = [certificates.certificate_to_pem(root).decode() for root in authority.bundle.roots]
    return json_response(
        {"ca": authority.ca_pem.decode(), "fingerprint": authority.fingerprint, "trusted": trusted}
    )


async def show_rotation(request: Request) -> Response:
    access.require_cluster_wide(caller_of(request), Action.ROTATE_CA)
    return json_response(_rotation_json(api_of(request)))


async def start_rotation(request: Request) -> Response:
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.ROTATE_CA)
    body = fields.known_fields(await json_body(request), ("overlap_seconds",))
    overlap = _parse_overlap(api, body.get("overlap_seconds"))
    try:
        await _change_ca(lambda: api.authority.rotate(datetime.now(UTC), overlap))
    except Rotating as refusal:
        raise Conflict(str(refusal), hint="end it first: rota ca rotate --finish") from None
    set_audit_target(request, f"ca {api.authority.fingerprint}")
    return json_response(_rotation_json(api), 201)


async def finish_rotation(request: Request) -> Response:
    """End the overlap; refused while nodes or watchers depend on the previous CA, unless forced."""
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.ROTATE_CA)
    body = fields.known_fields(await json_body(request), ("force",))
    force = fields.flag("force", body.get("force", False))
    dependents = (await api.engine.read(lambda _: _dependents(api))).all
    if dependents and not force:
        unnamed = len(dependents) - _DEPENDENTS_NAMED_MAX
        more = f" and {unnamed} more" if unnamed > 0 else ""
        raise Conflict(
            f"the previous CA is still needed by {', '.join(dependents[:_DEPENDENTS_NAMED_MAX])}{more}",
            hint="see rota ca status; --force cuts them off, and they have to join again",
        )
    try:
        await _change_ca(lambda: api.authority.finish(datetime.now(UTC)))
    except NotRotating as refusal:
        raise Conflict(str(refusal), hint="start one: rota ca rotate") from None
    set_audit_target(request, f"ca {api.authority.fingerprint}{' by force' if force else ''}")
    return json_response(_rotation_json(api))


async def replace_ca(request: Request) -> Response:
    """Replace the CA without an overlap: every certificate that it signed is refused from now on."""
    api = api_of(request)
    access.require_cluster_wide(caller_of(request), Action.ROTATE_CA)
    fields.known_fields(await json_body(request), ())
    await _change_ca(lambda: api.authority.replace(datetime.now(UTC)))
    set_audit_target(request, f"ca {api.authority.fingerprint}")
    return json_response(_rotation_json(api))


async def _change_ca(change: Callable[[], Keyring]) -> None:
    """Apply a change of the keyring, in a thread since it is written to disk or to etcd.

    If etcd does not answer in time, it is not known whether the change was stored.
    """
    try:
        await asyncio.to_thread(change)
    except TimeoutError:
        raise Unavailable(
            "the store does not answer; whether the CA changed is shown by rota ca status"
        ) from None


def _parse_overlap(api: Api, value: object) -> timedelta:
    if value is None:
        return api.authority.node_usable
    seconds = fields.number("overlap_seconds", parse_seconds, value, RENEWAL_WINDOW_SECONDS_MAX)
    if seconds < 0:
        raise BadField("overlap_seconds", "is negative", "write 0 or more: 90d")
    return timedelta(seconds=seconds)


def _dependents(api: Api) -> CaDependents:
    return find_ca_dependents(api.engine.mirror, api.vault.list_watchers(), api.authority, datetime.now(UTC))


def _rotation_json(api: Api) -> jobs.Json:
    ring, found = api.authority.ring, _dependents(api)
    roots = zip(api.authority.bundle.roots, ring.roots, strict=True)
    return {
        "phase": "stable" if ring.previous is None else "overlap",
        "authorities": [
            {
                "fingerprint": certificates.fingerprint_of(root),
                "made_at_ms": made.made_at_ms,
                "expires_at_ms": round(root.not_valid_after_utc.timestamp() * 1000),
                "signs": made is ring.current,
            }
            for root, made in roots
        ],
        "started_at_ms": ring.started_at_ms or None,
        "overlap_until_ms": ring.overlap_until_ms or None,
        "dependents": len(found.all),
        "nodes": found.connected[:NAMES_SHOWN_MAX],
        "away": found.away[:NAMES_SHOWN_MAX],
        "watchers": found.watchers[:NAMES_SHOWN_MAX],
        "retired": [
            {"fingerprint": retired.fingerprint, "retired_at_ms": retired.retired_at_ms}
            for retired in ring.retired
        ],
    }


ROUTES = [
    responses.route("GET", "/v1/ca", show_ca),
    responses.route("GET", "/v1/ca/rotation", show_rotation),
    responses.route("POST", "/v1/ca/rotation", start_rotation),
    responses.route("POST", "/v1/ca/rotation/finish", finish_rotation),
    responses.route("POST", "/v1/ca/replace", replace_ca),
]
