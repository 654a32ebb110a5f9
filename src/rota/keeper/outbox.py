"""The outbox: events that the agent has not been sent yet, and when they are due."""

import math
from collections.abc import Callable

from rota.keeper.protocol import wire
from rota.keeper.resources.reservations import AttemptKey

PENDING_MAX = 1_000_000  # backpressure: an agent that lets more pile up is disconnected, and gets the state
STARTED_DELAY_NS = 5_000_000  # a start is not urgent, and may join the message of the end
ENDED_INTERVAL_NS = 2_000_000  # at thousands of ends a second a message for each would cost more than they do


class Outbox:
    """Coalesces events into messages. Call with `Supervisor.lock` held.

    It is open between an agent's hello and its disconnect: an agent gets the whole state first, so that
    events from before need not be kept.
    """

    def __init__(self, wake: Callable[[], None], now_ns: Callable[[], int]) -> None:
        self._wake = wake
        self._now_ns = now_ns
        self._is_open = False
        self._ended_at_ns = 0  # when ends were last sent
        self._expects_more = False
        self._due_at_ns = math.inf  # when to drain; soon after a message with ends, even if nothing came
        self._started: dict[AttemptKey, int] = {}
        self._ended: dict[AttemptKey, str] = {}
        self._refused: list[str] = []
        self._lines = bytearray()  # messages of other kinds
        self._steps: dict[AttemptKey, str] = {}
        self._versions: dict[AttemptKey, int] = {}
        self._services: dict[AttemptKey, str] = {}

    def open(self) -> None:
        # Events from before the hello are in the state that the agent is sent.
        self.close()
        self._is_open = True

    def close(self) -> None:
        self._is_open = False
        self._due_at_ns = math.inf
        self._started.clear()
        self._ended.clear()
        self._refused.clear()
        self._lines.clear()
        self._steps.clear()
        self._versions.clear()
        self._services.clear()

    def send(self, line: bytes, in_ns: int = 0) -> None:
        if self._is_open:
            self._lines += line
            self._schedule(self._now_ns() + in_ns)

    def add_started(self, key: AttemptKey, started_ms: int) -> None:
        if self._is_open:
            self._started[key] = started_ms
            self._schedule(self._now_ns() + STARTED_DELAY_NS)

    def add_ended(self, key: AttemptKey, row: str, *, is_last: bool) -> None:
        """Queue an end; that of the last live attempt is sent at once, because no other can join it."""
        if self._is_open:
            # The row of the end also tells when it started.
            self._started.pop(key, None)
            self._ended[key] = row
            self._expects_more = not is_last
            self._schedule(0 if is_last else self._ended_at_ns + ENDED_INTERVAL_NS)

    def add_steps(self, key: AttemptKey, row: str) -> None:
        """Queue the steps of an attempt, to go with its start or end, which must be queued after this."""
        if self._is_open:
            self._steps[key] = row

    def add_version(self, key: AttemptKey, version: int) -> None:
        """Queue the spec version that an attempt was started with, as `add_steps`."""
        if self._is_open:
            self._versions[key] = version

    def add_service(self, key: AttemptKey, row: str) -> None:
        """Queue the state of a service, as `add_steps`."""
        if self._is_open:
            self._services[key] = row

    def add_refused(self, key: AttemptKey, reason: str) -> None:
        if self._is_open:
            self._refused.append(wire.encode([*key, reason]))
            self._schedule(self._ended_at_ns + ENDED_INTERVAL_NS)

    def due_in_ns(self) -> float:
        """Time until the next `drain`; infinite if nothing is pending."""
        return self._due_at_ns - self._now_ns()

    def is_overfull(self) -> bool:
        return len(self._started) + len(self._ended) + len(self._refused) > PENDING_MAX

    def drain(self) -> bytes:
        """Pop everything that is pending as one message; empty if nothing is."""
        self._due_at_ns = math.inf
        if self._ended or self._refused:
            self._ended_at_ns = self._now_ns()
            # While ends keep coming, the next message waits for the interval and carries many of them.
            if self._expects_more:
                self._due_at_ns = self._ended_at_ns + ENDED_INTERVAL_NS  # no wakeup for ends until then
        lines = bytes(self._lines)
        self._lines.clear()
        if not (self._started or self._ended or self._refused):
            return lines
        started = [f'["{job}",{index},{attempt},{ms}]' for (job, index, attempt), ms in self._started.items()]
        versions = [wire.encode([*key, version]) for key, version in self._versions.items()]
        message = wire.events_line(
            started,
            self._ended.values(),
            self._refused,
            steps=self._steps.values(),
            lives=self._services.values(),
            versions=versions,
        )
        self._steps.clear()
        self._services.clear()
        self._versions.clear()
        self._started.clear()
        self._ended.clear()
        self._refused.clear()
        return lines + message

    def _schedule(self, at_ns: int) -> None:
        if at_ns < self._due_at_ns:
            self._due_at_ns = at_ns
            self._wake()
