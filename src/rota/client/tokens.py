"""`cluster.tokens` and `cluster.join_tokens`: who may use the API, and which machines may join."""

from typing import Any, Unpack

from rota.client.request_fields import JoinTokenFields
from rota.client.server_views import Enrolled, JoinToken, ListedJoinToken, Token
from rota.client.transport import ApiRequest, QueryValue, Transport, new_key, segment
from rota.client.views import listed, read


class Tokens:
    """API tokens of users and programs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, **query: QueryValue) -> list[Token]:
        """Tokens by id, without their secrets; all, or a page by `limit` and `after`."""
        answer = self._transport.call(ApiRequest("GET", "/v1/tokens", query))
        return [read(Token, item) for item in listed(answer, "tokens")]

    def create(
        self,
        name: str,
        role: str,
        *namespaces: str,
        valid_seconds: str | float | None = None,
        replaces: str | None = None,
    ) -> Token:
        """Create a token, for all namespaces unless some are given. Only this answer contains the secret.

        `replaces` is the id of a valid token of the same name; the new token continues its event cursors.
        """
        body: dict[str, Any] = {"name": name, "role": role, "namespaces": [*namespaces] or ["*"]}
        body |= {} if valid_seconds is None else {"valid_seconds": valid_seconds}
        body |= {} if replaces is None else {"replaces": replaces}
        # The key makes a retry return the same token: if the first answer is lost, no second token exists.
        key = {"Idempotency-Key": new_key()}
        return read(Token, self._transport.call(ApiRequest("POST", "/v1/tokens", body=body, headers=key)))

    def revoke(self, token_id: str) -> None:
        """Revoke a token: its next request is refused, and its open streams end within 5 s."""
        self._transport.call(ApiRequest("DELETE", f"/v1/tokens/{segment(token_id)}"))


class JoinTokens:
    """One-time tokens that let a machine join as a node or a watcher."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, **query: QueryValue) -> list[ListedJoinToken]:
        """Join tokens by id, without their secrets; all, or a page by `limit` and `after`."""
        answer = self._transport.call(ApiRequest("GET", "/v1/join-tokens", query))
        return [read(ListedJoinToken, item) for item in listed(answer, "join_tokens")]

    def create(self, **options: Unpack[JoinTokenFields]) -> JoinToken:
        """Create a join token for one machine.

        Options are `labels`, `cluster`, `valid_seconds`, `local`, `role` and `addresses`.
        """
        body = {name: value for name, value in options.items() if value is not None}
        return read(JoinToken, self._transport.call(ApiRequest("POST", "/v1/join-tokens", body=body)))

    def revoke(self, token_id: str) -> None:
        """Revoke a join token that has not been used; a used one is a conflict."""
        self._transport.call(ApiRequest("DELETE", f"/v1/join-tokens/{segment(token_id)}"))

    def enroll(self, join_token: str, csr: str, name: str) -> Enrolled:
        """Join a machine with its token; `csr` is a PEM certificate request for a key of that machine."""
        body = {"token": join_token, "csr": csr, "name": name}
        return read(Enrolled, self._transport.call(ApiRequest("POST", "/v1/enroll", body=body)))
