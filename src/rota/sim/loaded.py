"""Records -> the mirror that a server reads them into."""

from collections.abc import Iterable

from rota.engine.state.mirror import Mirror, Unapplied
from rota.model.plan import Record
from rota.sim.broken import InvariantBroken


def loaded(records: Iterable[Record], now_ms: int) -> Mirror:
    """A fresh mirror of these. By the time it tells jobs whose tasks pause from those in line."""
    mirror = Mirror()
    mirror.now_ms = now_ms
    try:
        mirror.load(records)
    except Unapplied as unapplied:
        raise InvariantBroken(f"a record cannot be loaded: {unapplied}") from unapplied
    return mirror
