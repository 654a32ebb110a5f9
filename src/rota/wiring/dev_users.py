"""Whether the jobs of a root's dev cluster run as root, or each as a user of its own. [I/O]

They run as root while only root can submit any: on loopback, with the one token that the cluster made for
its own user. They never do again once another token was made, also after it is gone: a job that was submitted
with it may still wait, or be started again.

The order in `admit_others` closes the race with a job of the new token: every agent that starts work as root
is dead before the token is valid, and an agent that replaces it configures its keeper before it orders work.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rota.config import ConfigError
from rota.identity.vault import Vault
from rota.model.errors import Conflict
from rota.model.names import is_loopback
from rota.runtimes.process import SELF
from rota.wiring.console import print_line
from rota.wiring.run_as import check_way, may_become_others

_MARK = "own-users"  # in the cluster's directory: another token has existed
_HINT = "start rota dev with another --data-dir, or set ROTA_RUN_AS=self to let all jobs run as root"


class DevUsers:
    """Decides at the start, and once more when a token is made; what was set as ROTA_RUN_AS always holds."""

    def __init__(self, directory: Path, vault: Path, listen: str | None) -> None:
        self._directory = directory
        self._decides = "ROTA_RUN_AS" not in os.environ and may_become_others()
        self._why_own = self._reason(vault, listen) if self._decides else None
        self._followers: list[Callable[[], Awaitable[None]]] = []
        self._switching = asyncio.Lock()
        self._has_switched = not self._decides or self._why_own is not None
        if self._why_own is not None:
            self._open_way()

    @property
    def flags(self) -> Sequence[str]:
        """What an agent of this cluster is told; without a word it is ROTA_RUN_AS, or own users for root."""
        return ("--run-as", SELF) if self._decides and self._why_own is None else ()

    def follow(self, restart: Callable[[], Awaitable[None]]) -> None:
        """`restart` returns when no agent lives that was started with other `flags`."""
        self._followers.append(restart)

    def tell(self) -> None:
        if self._why_own is not None:
            print_line(f"  jobs run as users of their own, not as root: {self._why_own}")

    async def admit_others(self) -> None:
        """Returns when no job that is submitted from now on can run as root; raises where that cannot be."""
        async with self._switching:
            if self._has_switched:
                return
            self._open_way_or_refuse()
            (self._directory / _MARK).touch(mode=0o600)
            self._why_own = "another token was made"
            for restart in self._followers:
                await restart()
            self._has_switched = True  # last: what failed half-way is done again before the next token
        print_line("  another token was made: jobs run as users of their own from now on, not as root")

    def _reason(self, vault: Path, listen: str | None) -> str | None:
        if listen is not None and not is_loopback(listen):
            return "other machines can reach it"
        owners = {token.owned_by for token in Vault.open(vault).list_api_tokens()}
        if len(owners) > 1 or (self._directory / _MARK).exists():
            return "another token was made"
        return None

    def _open_way_or_refuse(self) -> None:
        try:
            self._open_way()
        except ConfigError as error:
            reason = f"jobs of another token must not run as root, and cannot run as others: {error}"
            raise Conflict(reason, hint=_HINT) from None

    def _open_way(self) -> None:
        """Its own directory is the cluster's to open; those above it are not."""
        check_way(self._directory)
        self._directory.chmod(self._directory.stat().st_mode & 0o777 | 0o711)
