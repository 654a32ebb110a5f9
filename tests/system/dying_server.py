"""`rota server` that kills itself at a named point of its next commit, once a file says so."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rota.cli.main import main
from rota.engine.run import Engine
from rota.store.ack_marker import AckMarker
from rota.store.protocol import Batch
from rota.store.sqlite import SqliteStore

ORDER = Path(os.environ["ROTA_CONFIG"]).parent / "die-at"


def at(point: str, batch: Batch | None = None) -> None:
    """Die at this point, but only in a commit that writes something."""
    if batch is not None and not batch.puts:
        return
    if ORDER.exists() and ORDER.read_text() == point:
        ORDER.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class DyingStore(SqliteStore):
    """The real store, which may die at each step of a commit."""

    _busy = False

    def _commit(self, batch: Batch) -> int:
        at("before", batch)
        self._busy = bool(batch.puts)
        self._db.set_trace_callback(self._traced)  # called before a statement is executed
        try:
            revision = super()._commit(batch)
        finally:
            self._db.set_trace_callback(None)
            self._busy = False
        at("marked", batch)
        return revision

    def _traced(self, statement: str) -> None:
        if self._busy and statement == "COMMIT":
            at("written")

    async def commit(self, batch: Batch) -> int:
        revision = await super().commit(batch)
        at("answered", batch)
        return revision


class DyingMark(AckMarker):
    def write(self, epoch: int, revision: int) -> None:
        at("synced")
        super().write(epoch, revision)


class DyingEngine(Engine):
    def _publish(self, decided: Any) -> None:
        super()._publish(decided)
        if decided.puts:
            at("spoken")
            asyncio.get_running_loop().call_later(0.01, at, "sent")


def replace(module: str, name: str, by: type) -> None:
    __import__(module)
    setattr(sys.modules[module], name, by)


if __name__ == "__main__":
    replace("rota.store.sqlite", "AckMarker", DyingMark)
    replace("rota.wiring.leadership.leadership", "SqliteStore", DyingStore)
    replace("rota.wiring.server", "Engine", DyingEngine)
    main()
