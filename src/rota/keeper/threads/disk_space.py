"""Disk space check: while the keeper's disk is low, nothing new is started. [I/O]"""

import contextlib
import os

from rota.keeper.output.segments import SegmentStore
from rota.keeper.protocol import wire
from rota.keeper.supervisor import Supervisor

RESERVE_BYTES = 64 << 20  # kept free for running attempts and their results
RESERVE_SHARE = 50  # of a small disk: 1/50
RESERVE_FILES = 64


class DiskSpace:
    """Checked once a second by the trimmer thread; a change is sent to the agent."""

    def __init__(self, root: str, supervisor: Supervisor, outputs: SegmentStore) -> None:
        self._root = root
        self._supervisor = supervisor
        self._outputs = outputs

    def check(self) -> None:
        problem = self._supervisor.maintain_journal()
        shortage = f"cannot write its journal: {problem}" if problem else self._shortage()
        # Compared without the lock: only this thread writes it.
        if shortage == self._outputs.shortage:
            return
        with self._supervisor.lock:
            self._outputs.shortage = shortage
            self._supervisor.outbox.send(wire.shortage_line(shortage))

    def _shortage(self) -> str | None:
        """Why nothing new may start. Hysteresis: once low, 1.5 times the reserve must be free again."""
        with contextlib.suppress(OSError):
            found = os.statvfs(self._root)
            factor = 1.5 if self._outputs.shortage else 1.0
            reserve = min(RESERVE_BYTES, found.f_blocks * found.f_frsize // RESERVE_SHARE)
            if found.f_bavail * found.f_frsize < factor * reserve:
                return f"its disk is full: less than {reserve >> 10} KiB are free"
            if found.f_files and found.f_favail < factor * RESERVE_FILES:
                return "its disk has no files left"
        return None
