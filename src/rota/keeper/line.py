"""What was accepted and waits for room -> attempts that are about to be started, on record."""

import os

from rota.keeper import wire
from rota.keeper.attempt import Kernel, Running
from rota.keeper.book import Book
from rota.keeper.journal import Memory
from rota.keeper.leases import Leases
from rota.keeper.output.segments import Outputs, Segment
from rota.keeper.rules import Ask, Grant, Key, Refusal, Room
from rota.keeper.service.life import Life


class Line:
    """Used under the lock of the work."""

    def __init__(self, memory: Memory, outputs: Outputs, book: Book, leases: Leases, kernel: Kernel) -> None:
        self.room = Room()
        self._memory = memory
        self._outputs = outputs
        self._book = book
        self._leases = leases
        self._kernel = kernel

    def configure(self, order: wire.Configure) -> None:
        for refusal in self.room.configure(order.amounts, order.gpus):
            self._book.refuse(refusal.key, refusal.reason)

    def accept(self, key: Key, wanted: wire.Wanted) -> str | None:
        """Put it in line, or say why not. An order that came before is no new one."""
        if told := self._memory.ended.get(key):
            self._book.tell(key, told)
            return None
        job, index, attempt = key
        highest = self._memory.highest.get(job, {}).get(index, -1)
        if attempt <= highest and not self.room.waits(key):
            return f"attempt {attempt} is not newer than {highest}"
        refusal = self.room.offer(key, Ask(self._memory.specs[job].needs, wanted.gpus), firm=wanted.firm)
        if refusal is None:
            self._memory.raise_highest(key)
        return refusal

    def reserve(self) -> list[Running] | None:
        """Take room for what starts now, and write down what is pending and that these are about to start.

        None: they were refused, because it cannot be written; so must be those behind them in the line.
        """
        turns = list(iter(self.room.next, None))
        grants = [turn for turn in turns if isinstance(turn, Grant)]
        for refusal in (turn for turn in turns if isinstance(turn, Refusal)):
            self._book.refuse(refusal.key, refusal.reason)
        keys = [grant.key for grant in grants]
        started_ms, started_ns = self._kernel.now_ms(), self._kernel.now_ns()
        try:
            self._book.begin(keys, started_ms)
            segments = self._outputs.take(keys)
        except OSError as error:
            for key in keys:
                self.drop(key, f"cannot write the journal: {os.strerror(error.errno or 0)}")
            if grants:  # they may be on record
                self._book.take_back(keys)
            return None if grants else []
        pairs = zip(grants, segments, strict=True)
        return [self._open(grant, segment, started_ms, started_ns) for grant, segment in pairs]

    def drop(self, key: Key, reason: str) -> None:
        self.room.release(key)
        self._book.refuse(key, reason)

    def _open(self, grant: Grant, segment: Segment, started_ms: int, started_ns: int) -> Running:
        spec = self._memory.specs[grant.key[0]]
        attempt = Running(grant.key, spec, grant.gpus, started_ms, started_ns, segment)
        self._leases.begin(attempt)
        if spec.restart:
            attempt.life = Life()
        self._book.open(attempt)
        return attempt
