"""Routes of API tokens: make, list without their secrets, revoke. [I/O]"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import access, responses
from rota.apiserver.access import ALL_NAMESPACES, Action, Caller
from rota.apiserver.admission.idempotency import parse_idempotency_key
from rota.apiserver.api import Api, wall_ms
from rota.apiserver.openapi.server import TOKEN_FIELDS
from rota.apiserver.responses import api_of, caller_of, json_body, json_response, no_content, set_audit_target
from rota.apiserver.spec import fields
from rota.apiserver.views import pages
from rota.identity.errors import AlreadyExists, IdentityRefused, NameTaken, NoSuchToken
from rota.identity.tokens import API_PREFIX, ApiToken, Role, new_secret
from rota.identity.vault import new_token
from rota.model.amounts import parse_seconds
from rota.model.errors import BadField, Conflict, NotFound, QueueFull
from rota.model.limits import NAME_LENGTH_MAX

TOKENS_PAGE_MAX = 10_000  # all that there may be
LIFE_SECONDS_MAX = 10 * 365 * 24 * 3600.0  # without valid_seconds a token never expires
TOKEN_BODY_FIELDS = ("name", "role", "namespaces", "valid_seconds", "replaces")
_NAME_TAKEN_HINT = (
    "choose another name, revoke that token, or make its successor with replaces = its id and its name"
)
NAMESPACES_MAX = 64  # of one token: each is compared at every request


async def list_tokens(request: Request) -> Response:
    access.require_cluster_wide(caller_of(request), Action.CHANGE_TOKENS)
    page_request = pages.parse_page_request(request.query_params, TOKEN_FIELDS, "id", most=TOKENS_PAGE_MAX)
    vault = api_of(request).vault
    found, after = pages.paginate(vault.list_api_tokens(), lambda token: token.id, page_request)
    last_used = vault.last_uses.get
    shown = [pages.pick_fields(_token_json(token, last_used(token.id)), page_request.only) for token in found]
    return json_response({"tokens": shown, "next": after})


async def make_token(request: Request) -> Response:
    """Make a token. Its secret is in this response and stored nowhere.

    A request that is repeated with its idempotency key gets the same secret, which is derived from the key.
    """
    api, caller = api_of(request), caller_of(request)
    access.require_cluster_wide(caller, Action.CHANGE_TOKENS)
    body = fields.known_fields(await json_body(request), TOKEN_BODY_FIELDS)
    now_ms = wall_ms()
    token = new_token(
        fields.name("name", body.get("name")),
        fields.one_of("role", body.get("role"), Role),
        _parse_namespaces(body.get("namespaces", [ALL_NAMESPACES])),
        now_ms,
        _parse_expiry_ms(body.get("valid_seconds"), now_ms),
    )
    key = parse_idempotency_key(request.headers.get("idempotency-key"))
    secret = new_secret(API_PREFIX) if key is None else _secret_for_key(api, caller, key)
    replaces = _parse_replaced(body.get("replaces"))
    # Awaited before the token is stored: what it prepares has to hold before the token can be used.
    await api.before_token()
    # In a thread, as the vault syncs its file to disk. Durable before the secret is sent to the caller.
    try:
        made = await asyncio.to_thread(api.vault.store_api_token, secret, token, replaces)
    except NameTaken as refusal:
        raise Conflict(
            str(refusal), field="name" if replaces is None else "replaces", hint=_NAME_TAKEN_HINT
        ) from None
    except NoSuchToken as refusal:
        raise NotFound(str(refusal), field="replaces", hint="see GET /v1/tokens") from None
    except AlreadyExists as refusal:
        raise Conflict(str(refusal), hint="use another key") from None
    except IdentityRefused as refusal:
        raise QueueFull(str(refusal)) from None
    set_audit_target(request, f"token {made.token.id} {made.token.name}")
    shown = _token_json(made.token, api.vault.last_uses.get(made.token.id))
    return json_response({**shown, "token": secret}, 201 if made.is_new else 200)


def _secret_for_key(api: Api, caller: Caller, key: str) -> str:
    """The secret derived from an idempotency key; the one already made, if that was before a CA rotation."""
    possible = api.authority.api_secrets(caller.owner, key)
    return next((secret for secret in possible if api.vault.has_made(secret)), possible[0])


async def revoke_token(request: Request) -> Response:
    """The token is refused from its next request on; its open streams end within 5 s."""
    api, ref = api_of(request), request.path_params["ref"]
    access.require_cluster_wide(caller_of(request), Action.CHANGE_TOKENS)
    if not await asyncio.to_thread(api.vault.revoke_api_token, ref):
        raise NotFound(f"no token has the id '{fields.printable(ref)}'", hint="see GET /v1/tokens")
    set_audit_target(request, f"token {ref}")
    return no_content()


def _token_json(token: ApiToken, used_at_ms: int | None) -> pages.Json:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "namespaces": token.namespaces,
        "made_at_ms": token.made_at_ms,
        "expires_at_ms": token.expires_at_ms,
        "last_used_at_ms": used_at_ms,
    }


def _parse_replaced(value: object) -> str | None:
    return None if value is None else fields.text("replaces", value, NAME_LENGTH_MAX)


def _parse_namespaces(value: object) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= NAMESPACES_MAX:
        raise BadField(
            "namespaces",
            f"is not a list of 1 to {NAMESPACES_MAX} names",
            f'write ["ci"], or ["{ALL_NAMESPACES}"] for all',
        )
    return [ALL_NAMESPACES if name == ALL_NAMESPACES else fields.name("namespaces", name) for name in value]


def _parse_expiry_ms(value: object, now_ms: int) -> int | None:
    if value is None:
        return None
    seconds = fields.number("valid_seconds", parse_seconds, value, LIFE_SECONDS_MAX)
    if seconds < 1:
        raise BadField("valid_seconds", "is too short", "write 1 s or more, or leave it out")
    return now_ms + round(seconds * 1000)


ROUTES = [
    responses.route("GET", "/v1/tokens", list_tokens),
    responses.route("POST", "/v1/tokens", make_token),
    responses.route("DELETE", "/v1/tokens/{ref}", revoke_token),
]
