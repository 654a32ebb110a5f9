"""Silence of the peer of a connection, counted in ticks of this process. [I/O]"""

import asyncio

from rota.model.limits import WATCHER_SILENT_MS, WATCHER_TELL_MS

_TICKS = WATCHER_SILENT_MS // WATCHER_TELL_MS


class PeerSilent(Exception):
    """The peer has sent nothing for too long."""


class KeepaliveTimer:
    """Ends a connection whose peer is silent.

    A process that was suspended or starved has ticked once, however long that lasted. What arrived meanwhile
    is read before the next tick, so the suspension of this process does not pass for silence of the peer.
    """

    def __init__(self, ticks_max: int = _TICKS, tick_seconds: float = WATCHER_TELL_MS / 1000) -> None:
        self._ticks = 0
        self._ticks_max = ticks_max
        self._tick_seconds = tick_seconds

    def reset(self) -> None:
        """The peer has sent something."""
        self._ticks = 0

    async def watch(self) -> None:
        """Raises PeerSilent after `ticks_max` ticks without a message."""
        while self._ticks < self._ticks_max:
            await asyncio.sleep(self._tick_seconds)
            self._ticks += 1
        raise PeerSilent(f"it has sent nothing for {self._ticks_max * self._tick_seconds:g} s")
