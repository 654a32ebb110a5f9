"""`rota.client.access` for asyncio, under the same names. Made by `make client`, not by hand."""

from collections.abc import Mapping
from typing import Any

from rota.client.access import Access
from rota.client.aio.threads import apart
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


class AsyncAccess:
    _sync: Access

    async def tokens(self, **query: str | int | None) -> list[Token]:
        """Who may use the API, without the secrets; by id, all or a page by `limit` and `after`."""
        return await apart(lambda: self._sync.tokens(**query))

    async def make_token(
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
        return await apart(
            lambda: self._sync.make_token(
                name, role, *namespaces, valid_seconds=valid_seconds, replaces=replaces
            )
        )

    async def revoke_token(self, token_id: str) -> None:
        """The token is refused from its next request on; its open streams end within 5 s."""
        await apart(lambda: self._sync.revoke_token(token_id))

    async def join_token(self, **wishes: Any) -> JoinToken:
        """The right of one machine: `labels`, `cluster`, `valid_seconds`, `local`, `role`, `addresses`."""
        return await apart(lambda: self._sync.join_token(**wishes))

    async def join_tokens(self, **query: str | int | None) -> list[ListedJoinToken]:
        """Rights to join, without the secrets; by id, all or a page by `limit` and `after`."""
        return await apart(lambda: self._sync.join_tokens(**query))

    async def revoke_join_token(self, token_id: str) -> None:
        """It joins nothing from then on; one that was used already cannot be taken back."""
        await apart(lambda: self._sync.revoke_join_token(token_id))

    async def authority(self) -> Authority:
        """Who signs certificates of nodes."""
        return await apart(self._sync.authority)

    async def ca_rotation(self) -> CaRotation:
        """The authorities that are trusted, and what still depends on the previous one."""
        return await apart(self._sync.ca_rotation)

    async def rotate_ca(self, overlap_seconds: str | float | None = None) -> CaRotation:
        """Have a new authority sign; the previous one stays trusted for the overlap."""
        return await apart(lambda: self._sync.rotate_ca(overlap_seconds))

    async def finish_ca_rotation(self, *, force: bool = False) -> CaRotation:
        """End the overlap; refused while something depends on the previous authority, unless by `force`."""
        return await apart(lambda: self._sync.finish_ca_rotation(force=force))

    async def replace_ca(self) -> CaRotation:
        """Trust nothing that was signed before, at once: every node and watcher has to join again."""
        return await apart(self._sync.replace_ca)

    async def enroll(self, join_token: str, csr: str, name: str) -> Enrolled:
        """Make a machine a node: `csr` is a certificate request (PEM) of a key that was made there."""
        return await apart(lambda: self._sync.enroll(join_token, csr, name))

    async def watchers(self) -> list[Watcher]:
        """Processes that hold connections of agents for the leader."""
        return await apart(self._sync.watchers)

    async def remove_watcher(self, watcher: str) -> None:
        """By its id or name: it is refused from then on."""
        await apart(lambda: self._sync.remove_watcher(watcher))

    async def namespaces(self, **query: str | int | None) -> list[Namespace]:
        """Those for which something is set, and those that have jobs."""
        return await apart(lambda: self._sync.namespaces(**query))

    async def namespace(self, name: str) -> Namespace:
        """What its jobs hold, and what they may."""
        return await apart(lambda: self._sync.namespace(name))

    async def set_namespace(
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
        return await apart(
            lambda: self._sync.set_namespace(
                name, quota, weight, defaults=defaults, bounds=bounds, if_etag=if_etag
            )
        )

    async def forget_namespace(self, name: str, *, if_etag: str | None = None) -> None:
        """Take quota, weight, defaults and bounds off a namespace; its jobs go on."""
        await apart(lambda: self._sync.forget_namespace(name, if_etag=if_etag))
