"""Who may use a cluster and join it, and what groups of users may hold."""

from collections.abc import Mapping
from typing import Any

from rota.client.server_views import (
    Authority,
    CaRotation,
    Enrolled,
    JoinToken,
    ListedJoinToken,
    Namespace,
    Token,
    Watcher,
)
from rota.client.transport import ApiRequest, Transport, matching, new_key, segment
from rota.client.views import listed, read


class Access:
    transport: Transport

    def tokens(self, **query: str | int | None) -> list[Token]:
        """Who may use the API, without the secrets; by id, all or a page by `limit` and `after`."""
        answer = self.transport.call(ApiRequest("GET", "/v1/tokens", query))
        return [read(Token, item) for item in listed(answer, "tokens")]

    def make_token(
        self,
        name: str,
        role: str,
        *namespaces: str,
        valid_seconds: str | float | None = None,
        replaces: str | None = None,
    ) -> Token:
        """A token for another user, everywhere unless namespaces are named; its secret is told this once.

        `replaces` is the id of a valid token of the same name: the new one has its positions.
        """
        body: dict[str, Any] = {"name": name, "role": role, "namespaces": list(namespaces) or ["*"]}
        body |= {} if valid_seconds is None else {"valid_seconds": valid_seconds}
        body |= {} if replaces is None else {"replaces": replaces}
        key = {"Idempotency-Key": new_key()}  # who repeats this gets the same token, not a second one
        return read(Token, self.transport.call(ApiRequest("POST", "/v1/tokens", body=body, headers=key)))

    def revoke_token(self, token_id: str) -> None:
        """The token is refused from its next request on; its open streams end within 5 s."""
        self.transport.call(ApiRequest("DELETE", f"/v1/tokens/{segment(token_id)}"))

    def join_token(self, **wishes: Any) -> JoinToken:
        """The right of one machine: `labels`, `cluster`, `valid_seconds`, `local`, `role`, `addresses`."""
        said = {name: value for name, value in wishes.items() if value is not None}
        return read(JoinToken, self.transport.call(ApiRequest("POST", "/v1/join-tokens", body=said)))

    def join_tokens(self, **query: str | int | None) -> list[ListedJoinToken]:
        """Rights to join, without the secrets; by id, all or a page by `limit` and `after`."""
        answer = self.transport.call(ApiRequest("GET", "/v1/join-tokens", query))
        return [read(ListedJoinToken, item) for item in listed(answer, "join_tokens")]

    def revoke_join_token(self, token_id: str) -> None:
        """It joins nothing from then on; one that was used already cannot be taken back."""
        self.transport.call(ApiRequest("DELETE", f"/v1/join-tokens/{segment(token_id)}"))

    def authority(self) -> Authority:
        """Who signs certificates of nodes."""
        return read(Authority, self.transport.call(ApiRequest("GET", "/v1/ca")))

    def ca_rotation(self) -> CaRotation:
        """The authorities that are trusted, and what still depends on the previous one."""
        return read(CaRotation, self.transport.call(ApiRequest("GET", "/v1/ca/rotation")))

    def rotate_ca(self, overlap_seconds: str | float | None = None) -> CaRotation:
        """Have a new authority sign; the previous one stays trusted for the overlap."""
        body = {} if overlap_seconds is None else {"overlap_seconds": overlap_seconds}
        return read(CaRotation, self.transport.call(ApiRequest("POST", "/v1/ca/rotation", body=body)))

    def finish_ca_rotation(self, *, force: bool = False) -> CaRotation:
        """End the overlap; refused while something depends on the previous authority, unless by `force`."""
        request = ApiRequest("POST", "/v1/ca/rotation/finish", body={"force": force})
        return read(CaRotation, self.transport.call(request))

    def replace_ca(self) -> CaRotation:
        """Trust nothing that was signed before, at once: every node and watcher has to join again."""
        return read(CaRotation, self.transport.call(ApiRequest("POST", "/v1/ca/replace", body={})))

    def enroll(self, join_token: str, csr: str, name: str) -> Enrolled:
        """Make a machine a node: `csr` is a certificate request (PEM) of a key that was made there."""
        body = {"token": join_token, "csr": csr, "name": name}
        return read(Enrolled, self.transport.call(ApiRequest("POST", "/v1/enroll", body=body)))

    def watchers(self) -> list[Watcher]:
        """Processes that hold connections of agents for the leader."""
        answer = self.transport.call(ApiRequest("GET", "/v1/watchers"))
        return [read(Watcher, item) for item in listed(answer, "watchers")]

    def remove_watcher(self, watcher: str) -> None:
        """By its id or name: it is refused from then on."""
        self.transport.call(ApiRequest("DELETE", f"/v1/watchers/{segment(watcher)}"))

    def namespaces(self, **query: str | int | None) -> list[Namespace]:
        """Those for which something is set, and those that have jobs."""
        answer = self.transport.call(ApiRequest("GET", "/v1/namespaces", query))
        return [read(Namespace, item) for item in listed(answer, "namespaces")]

    def namespace(self, name: str) -> Namespace:
        """What its jobs hold, and what they may."""
        return read(Namespace, self.transport.call(ApiRequest("GET", _path(name))))

    def set_namespace(
        self,
        name: str,
        quota: Mapping[str, Any] | None = None,
        weight: int = 1,
        *,
        defaults: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        if_etag: str | None = None,
    ) -> Namespace:
        """What its jobs may hold together, as a whole: what is left out is not limited.

        `defaults` is what a task asks for where its job does not say; `bounds` are `priority`, `tolerate`,
        `clusters`, `jobs`, `tasks` and `bytes`, of which those left out are not set; None: as they are.
        """
        body: dict[str, Any] = {"quota": dict(quota or {}), "weight": weight}
        body |= {} if defaults is None else {"defaults": dict(defaults)}
        body |= {} if bounds is None else {"bounds": dict(bounds)}
        request = ApiRequest("PUT", _path(name), body=body, headers=matching(if_etag))
        return read(Namespace, self.transport.call(request))

    def forget_namespace(self, name: str, *, if_etag: str | None = None) -> None:
        """Take quota, weight, defaults and bounds off a namespace; its jobs go on."""
        self.transport.call(ApiRequest("DELETE", _path(name), headers=matching(if_etag)))


def _path(name: str) -> str:
    return f"/v1/namespaces/{segment(name)}"
