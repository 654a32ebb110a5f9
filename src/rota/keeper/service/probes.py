"""Non-blocking TCP and HTTP health checks of ports on this node. [I/O]"""

import contextlib
import errno
import os
import selectors
import socket
from typing import NamedTuple, Protocol

from rota.keeper.service.spec import KeeperCheck

HOST = "127.0.0.1"
STATUS_LINE_BYTES = 4096  # a status line is shorter
CODE_DIGITS = 3
CONNECTING = (0, errno.EINPROGRESS, errno.EINTR, errno.EAGAIN)


class ProbeTarget(Protocol):
    """What a probe is made for."""

    @property
    def check(self) -> KeeperCheck: ...


class ProbeResult(NamedTuple):
    """The result of a probe; `why` None: it succeeded."""

    target: ProbeTarget
    why: str | None


class Probe:
    """One connection; `advance` is called when its socket is ready, until it returns the result."""

    def __init__(self, target: ProbeTarget, until_ns: int) -> None:
        self.target = target
        self.timeout_at_ns = until_ns
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._received = b""
        self._request_sent = False

    def connect(self) -> str | None:
        """Start to connect; return the error if that fails at once."""
        number = self.socket.connect_ex((HOST, self.target.check.port))
        return None if number in CONNECTING else self._describe(number)

    def advance(self) -> ProbeResult | None:
        check = self.target.check
        try:
            if not self._request_sent:
                if number := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return ProbeResult(self.target, self._describe(number))
                if check.path is None:
                    return ProbeResult(self.target, None)
                request = (
                    f"GET {check.path} HTTP/1.0\r\nHost: {HOST}:{check.port}\r\nUser-Agent: rota\r\n\r\n"
                )
                self.socket.send(request.encode())
                self._request_sent = True
                return None
            more = self.socket.recv(STATUS_LINE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            return ProbeResult(self.target, self._describe(error.errno or 0))
        self._received += more
        line, found, _ = self._received.partition(b"\n")
        if not found and more and len(self._received) < STATUS_LINE_BYTES:
            return None
        return ProbeResult(self.target, _check_status_line(line, check))

    @property
    def selector_events(self) -> int:
        return selectors.EVENT_READ if self._request_sent else selectors.EVENT_WRITE

    def _describe(self, number: int) -> str:
        return f"port {self.target.check.port}: {os.strerror(number).lower()}"


class Probes:
    """All probes in progress, on one selector that also watches the checker's wakeup pipe."""

    def __init__(self, wakeup_fd: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup_fd, selectors.EVENT_READ)
        self._wakeup_fd = wakeup_fd
        self._probes: dict[Probe, None] = {}

    def start(self, target: ProbeTarget, until_ns: int) -> ProbeResult | None:
        """Start a probe; return its result if it fails at once."""
        try:
            probe = Probe(target, until_ns)
        except OSError as error:
            return ProbeResult(target, f"cannot be checked: {os.strerror(error.errno or 0).lower()}")
        if why := probe.connect():
            probe.socket.close()
            return ProbeResult(target, why)
        self._probes[probe] = None
        self._selector.register(probe.socket, probe.selector_events, probe)
        return None

    def wait(self, seconds: float | None) -> list[ProbeResult]:
        """Wait for results, a wakeup or the timeout."""
        results = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup_fd, 4096)
                continue
            if result := key.data.advance():
                self._end(key.data)
                results.append(result)
            else:
                self._selector.modify(key.data.socket, key.data.selector_events, key.data)
        return results

    def time_out(self, now_ns: int) -> list[ProbeResult]:
        """End probes that exceeded their timeout; return their results."""
        late = [probe for probe in self._probes if now_ns >= probe.timeout_at_ns]
        for probe in late:
            self._end(probe)
        return [
            ProbeResult(probe.target, f"took longer than {probe.target.check.timeout_ms / 1000:g} s")
            for probe in late
        ]

    def next_timeout_ns(self) -> int | None:
        """The earliest timeout of the probes in progress."""
        return min((probe.timeout_at_ns for probe in self._probes), default=None)

    def _end(self, probe: Probe) -> None:
        del self._probes[probe]
        self._selector.unregister(probe.socket)
        probe.socket.close()


def _check_status_line(line: bytes, check: KeeperCheck) -> str | None:
    parts = line.split()
    is_http = len(parts) >= 2 and parts[0].startswith(b"HTTP/")
    if not is_http or not parts[1].isdigit() or len(parts[1]) > CODE_DIGITS:  # it may answer anything
        return f"port {check.port} does not answer in HTTP"
    code = int(parts[1])
    if any(low <= code <= high for low, high in check.codes):
        return None
    return f"{check.path} answered {code}"
