"""Sequence numbers of one connection's messages, with their sending times: by them stale orders are known."""

from rota.model.limits import STALE_ORDER_MS, SUSPECT_MS


class MessageSequence:
    """Numbers outgoing messages from 1, and remembers when each one was sent until the server echoes it."""

    def __init__(self) -> None:
        self.next_n = 1
        self._sent_at_ms: dict[int, int] = {}
        self._last_ms = 0  # when a message was last sent, or could have been
        self.acknowledged_ms: int | None = None  # sending time of the newest message that the server echoed

    def next_number(self, now_ms: int) -> int:
        """Number a message that is sent now."""
        n = self.next_n
        self._sent_at_ms[n] = self._last_ms = now_ms
        self.next_n += 1
        return n

    def on_welcome(self, now_ms: int) -> bool:
        """Note the end of the handshake; False: it took so long that this node counts as silent already."""
        in_time = now_ms - self._last_ms < SUSPECT_MS
        self._last_ms = now_ms
        return in_time

    def stale_ms(self, echo: int, now_ms: int) -> int | None:
        """How old orders that echo message `echo` are, if they are too old; None: they are fresh.

        Either messages sent since are not echoed: the server was suspended, and may no longer lead. Or
        nothing was sent for a while: this machine was suspended, and the orders have waited in a buffer.
        """
        self.on_echo(echo)
        # The oldest message without an echo: dictionaries keep the order of insertion.
        unacknowledged_ms = next(iter(self._sent_at_ms.values()), now_ms)
        waited_ms = now_ms - min(unacknowledged_ms, self._last_ms)
        return waited_ms if waited_ms > STALE_ORDER_MS else None

    def on_echo(self, echo: int) -> None:
        """Note that the leader has received all messages up to `echo`."""
        for n in [n for n in self._sent_at_ms if n <= echo]:
            self.acknowledged_ms = self._sent_at_ms.pop(n)
