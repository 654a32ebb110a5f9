"""Checks of a port on this node, many at a time and none waited for. [I/O]"""

import contextlib
import errno
import os
import selectors
import socket
from typing import NamedTuple, Protocol

from rota.keeper.service.words import Check

HOST = "127.0.0.1"
LINE_BYTES = 4096  # a status line is shorter
CODE_DIGITS = 3
UNDER_WAY = (0, errno.EINPROGRESS, errno.EINTR, errno.EAGAIN)


class Asked(Protocol):
    """Whoever has a port checked."""

    @property
    def check(self) -> Check: ...


class Answer(NamedTuple):
    """What came of a check; None: nothing is wrong."""

    asked: Asked
    why: str | None


class Probe:
    """One connection; its answer is known once `advance` says so."""

    def __init__(self, asked: Asked, until_ns: int) -> None:
        self.asked = asked
        self.until_ns = until_ns
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._heard = b""
        self._has_asked = False

    def begin(self) -> str | None:
        """Why it cannot even begin."""
        number = self.socket.connect_ex((HOST, self.asked.check.port))
        return None if number in UNDER_WAY else self._in_words(number)

    def advance(self) -> Answer | None:
        check = self.asked.check
        try:
            if not self._has_asked:
                if number := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return Answer(self.asked, self._in_words(number))
                if check.path is None:
                    return Answer(self.asked, None)
                request = (
                    f"GET {check.path} HTTP/1.0\r\nHost: {HOST}:{check.port}\r\nUser-Agent: rota\r\n\r\n"
                )
                self.socket.send(request.encode())
                self._has_asked = True
                return None
            more = self.socket.recv(LINE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            return Answer(self.asked, self._in_words(error.errno or 0))
        self._heard += more
        line, found, _ = self._heard.partition(b"\n")
        if not found and more and len(self._heard) < LINE_BYTES:
            return None
        return Answer(self.asked, _said(line, check))

    @property
    def waits_for(self) -> int:
        return selectors.EVENT_READ if self._has_asked else selectors.EVENT_WRITE

    def _in_words(self, number: int) -> str:
        return f"port {self.asked.check.port}: {os.strerror(number).lower()}"


class Probes:
    """All of them on one selector, which also hears the bell."""

    def __init__(self, bell_fd: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell_fd, selectors.EVENT_READ)
        self._bell_fd = bell_fd
        self._probes: dict[Probe, None] = {}

    def begin(self, asked: Asked, until_ns: int) -> Answer | None:
        try:
            probe = Probe(asked, until_ns)
        except OSError as error:
            return Answer(asked, f"cannot be checked: {os.strerror(error.errno or 0).lower()}")
        if why := probe.begin():
            probe.socket.close()
            return Answer(asked, why)
        self._probes[probe] = None
        self._selector.register(probe.socket, probe.waits_for, probe)
        return None

    def wait(self, seconds: float | None) -> list[Answer]:
        """What is known once something happened, or after so many seconds."""
        answers = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._bell_fd, 4096)
                continue
            if answer := key.data.advance():
                self._end(key.data)
                answers.append(answer)
            else:
                self._selector.modify(key.data.socket, key.data.waits_for, key.data)
        return answers

    def give_up(self, now_ns: int) -> list[Answer]:
        """On those whose time is up."""
        late = [probe for probe in self._probes if now_ns >= probe.until_ns]
        for probe in late:
            self._end(probe)
        return [
            Answer(one.asked, f"took longer than {one.asked.check.timeout_ms / 1000:g} s") for one in late
        ]

    def next_ns(self) -> int | None:
        """When the first of them is given up."""
        return min((probe.until_ns for probe in self._probes), default=None)

    def _end(self, probe: Probe) -> None:
        del self._probes[probe]
        self._selector.unregister(probe.socket)
        probe.socket.close()


def _said(line: bytes, check: Check) -> str | None:
    words = line.split()
    is_http = len(words) >= 2 and words[0].startswith(b"HTTP/")
    if not is_http or not words[1].isdigit() or len(words[1]) > CODE_DIGITS:  # the service may say anything
        return f"port {check.port} does not answer in HTTP"
    code = int(words[1])
    if any(low <= code <= high for low, high in check.codes):
        return None
    return f"{check.path} answered {code}"
