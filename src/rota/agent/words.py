"""One connection's words: numbered, with the time each was said, so that an old answer is known as one."""

from rota.model.limits import STALE_ORDER_MS


class Words:
    def __init__(self) -> None:
        self.next_n = 1
        self._said_at_ms: dict[int, int] = {}

    def say(self, now_ms: int) -> int:
        """The number of a word that is said now."""
        n = self.next_n
        self._said_at_ms[n] = now_ms
        self.next_n += 1
        return n

    def stale_ms(self, echo: int, now_ms: int) -> int | None:
        """How long ago it was said what orders that answer word `echo` do not know; None: they are fresh.

        Stale ones come from a server that slept: it may no longer lead.
        """
        for n in [n for n in self._said_at_ms if n <= echo]:
            del self._said_at_ms[n]
        unheard_ms = next(iter(self._said_at_ms.values()), now_ms)
        waited_ms = now_ms - unheard_ms
        return waited_ms if waited_ms > STALE_ORDER_MS else None
