"""Checks of a port on this node, many at a time and none waited for. [I/O]"""

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
    """Whoever has a port checked."""

    @property
    def check(self) -> KeeperCheck: ...


class ProbeResult(NamedTuple):
    """What came of a check; None: nothing is wrong."""

    target: ProbeTarget
    why: str | None


class Probe:
    """One connection; its answer is known once `advance` says so."""

    def __init__(self, asked: ProbeTarget, until_ns: int) -> None:
        self.target = asked
        self.timeout_at_ns = until_ns
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._received = b""
        self._request_sent = False

    def connect(self) -> str | None:
        """Why it cannot even begin."""
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
    """All of them on one selector, which also hears the bell."""

    def __init__(self, bell_fd: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell_fd, selectors.EVENT_READ)
        self._wakeup_fd = bell_fd
        self._probes: dict[Probe, None] = {}

    def start(self, asked: ProbeTarget, until_ns: int) -> ProbeResult | None:
        try:
            probe = Probe(asked, until_ns)
        except OSError as error:
            return ProbeResult(asked, f"cannot be checked: {os.strerror(error.errno or 0).lower()}")
        if why := probe.connect():
            probe.socket.close()
            return ProbeResult(asked, why)
        self._probes[probe] = None
        self._selector.register(probe.socket, probe.selector_events, probe)
        return None

    def wait(self, seconds: float | None) -> list[ProbeResult]:
        """What is known once something happened, or after so many seconds."""
        answers = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup_fd, 4096)
                continue
            if answer := key.data.advance():
                self._end(key.data)
                answers.append(answer)
            else:
                self._selector.modify(key.data.socket, key.data.selector_events, key.data)
        return answers

    def time_out(self, now_ns: int) -> list[ProbeResult]:
        """On those whose time is up."""
        late = [probe for probe in self._probes if now_ns >= probe.timeout_at_ns]
        for probe in late:
            self._end(probe)
        return [
            ProbeResult(one.target, f"took longer than {one.target.check.timeout_ms / 1000:g} s")
            for one in late
        ]

    def next_timeout_ns(self) -> int | None:
        """When the first of them is given up."""
        return min((probe.timeout_at_ns for probe in self._probes), default=None)

    def _end(self, probe: Probe) -> None:
        del self._probes[probe]
        self._selector.unregister(probe.socket)
        probe.socket.close()


def _check_status_line(line: bytes, check: KeeperCheck) -> str | None:
    words = line.split()
    is_http = len(words) >= 2 and words[0].startswith(b"HTTP/")
    if not is_http or not words[1].isdigit() or len(words[1]) > CODE_DIGITS:  # the service may say anything
        return f"port {check.port} does not answer in HTTP"
    code = int(words[1])
    if any(low <= code <= high for low, high in check.codes):
        return None
    return f"{check.path} answered {code}"
