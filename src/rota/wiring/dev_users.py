"""Whether the jobs of a root's dev cluster run as root, or each as a user of its own. [I/O]

They run as root while only root can submit: on loopback, with the one token that the cluster made for its own
user. They never do again once another token was made, even after it was deleted: a job that was submitted
with it may still be pending, or be restarted.

The order in `admit_others` closes the race with a job of the new token: every agent that starts work as root
has exited before the token is valid, and the agent that replaces it configures its keeper before it starts
work.
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
from rota.wiring.run_as import check_reachable, may_become_others

_MARK = "own-users"  # in the cluster's directory: another token has existed
_HINT = "start rota dev with another --data-dir, or set ROTA_RUN_AS=self to let all jobs run as root"


class DevUsers:
    """Decides at the start, and again when a token is made; a value of ROTA_RUN_AS always wins."""

    def __init__(self, directory: Path, vault: Path, listen: str | None) -> None:
        self._directory = directory
        self._decides = "ROTA_RUN_AS" not in os.environ and may_become_others()
        self._why_own = self._reason(vault, listen) if self._decides else None
        self._restarts: list[Callable[[], Awaitable[None]]] = []
        self._switching = asyncio.Lock()
        self._has_switched = not self._decides or self._why_own is not None
        if self._why_own is not None:
            self._open_directory()

    @property
    def flags(self) -> Sequence[str]:
        """Flags for agents of this cluster; without any, ROTA_RUN_AS or the default for root applies."""
        return ("--run-as", SELF) if self._decides and self._why_own is None else ()

    def follow(self, restart: Callable[[], Awaitable[None]]) -> None:
        """Register a callback that restarts agents; it returns when none runs with other `flags`."""
        self._restarts.append(restart)

    def print_reason(self) -> None:
        if self._why_own is not None:
            print_line(f"  jobs run as users of their own, not as root: {self._why_own}")

    async def admit_others(self) -> None:
        """Return once no job submitted from now on can run as root. Raises Conflict if that is impossible."""
        async with self._switching:
            if self._has_switched:
                return
            self._open_directory_or_refuse()
            # Crash point: the mark is first, so that a restart after this uses own users in any case.
            (self._directory / _MARK).touch(mode=0o600)
            self._why_own = "another token was made"
            for restart in self._restarts:
                await restart()
            self._has_switched = True  # last: a failure half-way is repeated before the next token
        print_line("  another token was made: jobs run as users of their own from now on, not as root")

    def _reason(self, vault: Path, listen: str | None) -> str | None:
        if listen is not None and not is_loopback(listen):
            return "other machines can reach it"
        owners = {token.owned_by for token in Vault.open(vault).list_api_tokens()}
        if len(owners) > 1 or (self._directory / _MARK).exists():
            return "another token was made"
        return None

    def _open_directory_or_refuse(self) -> None:
        try:
            self._open_directory()
        except ConfigError as error:
            reason = f"jobs of another token must not run as root, and cannot run as others: {error}"
            raise Conflict(reason, hint=_HINT) from None

    def _open_directory(self) -> None:
        """Let all users pass through the cluster's own directory; those above it are only checked."""
        check_reachable(self._directory)
        self._directory.chmod(self._directory.stat().st_mode & 0o777 | 0o711)
