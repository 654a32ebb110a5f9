"""How long the other end of a connection has said nothing, counted in ticks of this process. [I/O]"""

import asyncio

from rota.model.limits import WATCHER_SILENT_MS, WATCHER_TELL_MS

_TICKS = WATCHER_SILENT_MS // WATCHER_TELL_MS


class PeerSilent(Exception):
    """The other end has said nothing for too long."""


class KeepaliveTimer:
    """Ends a connection whose other end is silent.

    A process that was stopped or starved has ticked once, however long it lasted: what came meanwhile is read
    before the next tick, so its own pause is not taken for the silence of the other end.
    """

    def __init__(self, most: int = _TICKS, tick_seconds: float = WATCHER_TELL_MS / 1000) -> None:
        self._ticks = 0
        self._most = most
        self._tick_seconds = tick_seconds

    def reset(self) -> None:
        """The other end has said something."""
        self._ticks = 0

    async def watch(self) -> None:
        """Raises Silent after so many ticks without a word."""
        while self._ticks < self._most:
            await asyncio.sleep(self._tick_seconds)
            self._ticks += 1
        raise PeerSilent(f"it has said nothing for {self._most * self._tick_seconds:g} s")
