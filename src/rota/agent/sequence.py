"""One connection's words: numbered, with the time each was said, so that an old answer is known as one."""

from rota.model.limits import STALE_ORDER_MS, SUSPECT_MS


class MessageSequence:
    def __init__(self) -> None:
        self.next_n = 1
        self._sent_at_ms: dict[int, int] = {}
        self._last_ms = 0  # when something was last said, or allowed to be
        self.acknowledged_ms: int | None = None  # when the last word was said that has been heard

    def next_number(self, now_ms: int) -> int:
        """The number of a word that is said now."""
        n = self.next_n
        self._sent_at_ms[n] = self._last_ms = now_ms
        self.next_n += 1
        return n

    def on_welcome(self, now_ms: int) -> bool:
        """From here on we speak; False: so late that we count as silent already."""
        in_time = now_ms - self._last_ms < SUSPECT_MS
        self._last_ms = now_ms
        return in_time

    def stale_ms(self, echo: int, now_ms: int) -> int | None:
        """By how much orders that answer word `echo` are too old; None: they are fresh.

        Either the server has not heard what was said since: it slept, and may no longer lead. Or nothing
        was said for a while: we slept, and the orders lay waiting.
        """
        self.on_echo(echo)
        unheard_ms = next(iter(self._sent_at_ms.values()), now_ms)
        waited_ms = now_ms - min(unheard_ms, self._last_ms)
        return waited_ms if waited_ms > STALE_ORDER_MS else None

    def on_echo(self, echo: int) -> None:
        """The leader has heard all words up to this one."""
        for n in [n for n in self._sent_at_ms if n <= echo]:
            self.acknowledged_ms = self._sent_at_ms.pop(n)
