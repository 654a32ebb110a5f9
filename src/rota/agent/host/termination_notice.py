"""Termination notices: output of a configured command -> whether this machine leaves, why and when. [I/O]"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Callable
from typing import NamedTuple

from rota.model.amounts import parse_seconds
from rota.model.errors import BadField
from rota.model.limits import DRAIN_SECONDS_MAX, NOTICE_NO_LOOKS, NOTICE_SECONDS, NOTICE_WORDS_MAX
from rota.model.messages import DrainRequest

POLL_SECONDS = 5.0
_ANSWER_SECONDS = 10.0  # a command that takes longer counts as failed
_NOT_RUN = (126, 127)  # exit codes of a shell or env for a command that it cannot run
_NO_REASON = "its provider takes the machine away"


class NoticeText(NamedTuple):
    """The first line that the command printed: `90s maintenance of the host`, or either half of it."""

    reason: str
    seconds: float

    @classmethod
    def parse(cls, line: str) -> "NoticeText":
        text = "".join(letter for letter in line.strip() if letter.isprintable())[:NOTICE_WORDS_MAX]
        duration, _, reason = text.partition(" ")
        try:
            return cls(reason.strip() or _NO_REASON, parse_seconds("notice", duration, DRAIN_SECONDS_MAX))
        except BadField:
            return cls(text or _NO_REASON, NOTICE_SECONDS)


class Termination(NamedTuple):
    """This node will leave."""

    reason: str
    at: float  # by the event loop's clock
    moves: bool  # attempts that still run then are evicted to other nodes; else they are ended here


class TerminationState:
    """The notice in force. Its time does not change once given; NOTICE_NO_LOOKS polls without it end it."""

    def __init__(self) -> None:
        self.termination: Termination | None = None
        self._missed = 0

    def update(self, notice: NoticeText | None, now: float) -> bool:
        """Apply the result of one poll; return True if the pending termination changed."""
        before = self.termination
        self._missed = 0 if notice is not None else self._missed + 1
        if notice is not None:
            self.termination = before or Termination(notice.reason, now + notice.seconds, moves=True)
        elif self._missed >= NOTICE_NO_LOOKS:
            self.termination = None
        return self.termination is not before


class TerminationWatcher:
    """Whether this node will leave: by an operator's request, or by the command, which is polled."""

    def __init__(self, command: str | None, node: str) -> None:
        self._command = command
        self._environ = {**os.environ, "ROTA_NODE": node}
        self._notice = TerminationState()
        self._requested: Termination | None = None
        self._problem: str | None = None  # why the command could not be run

    @property
    def termination(self) -> Termination | None:
        return self._notice.termination or self._requested

    @property
    def is_terminating(self) -> bool:
        return self._notice.termination is not None

    @property
    def last_change(self) -> str:
        """What the last poll changed, as a log line."""
        if self._problem is not None:
            return f"notice command failed: {self._problem}"
        termination = self._notice.termination
        if termination is None:
            return "termination notice withdrawn: this machine stays"
        return f"this machine is terminated in {termination.at - _now():.0f} s: {termination.reason}"

    def leave_within(self, seconds: float, reason: str) -> None:
        self._requested = Termination(reason, _now() + seconds, moves=False)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Poll the command, if there is one, until cancelled; call `changed` after each change."""
        while self._command is not None:
            await asyncio.sleep(POLL_SECONDS)
            if await self.poll():
                changed()

    async def poll(self) -> bool:
        """Run the command once; return True if anything changed. A failure changes only `last_change`."""
        if self._command is None:
            return False
        before, self._problem = self._problem, None
        try:
            notice = await self._run(self._command)
        except TimeoutError:
            self._problem = f"it takes longer than {_ANSWER_SECONDS:g} s"
            return self._problem != before
        except OSError as error:
            self._problem = f"it cannot be run: {error}"
            return self._problem != before
        return self._notice.update(notice, _now())

    async def _run(self, command: str) -> NoticeText | None:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env=self._environ,
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()
        if process.returncode in _NOT_RUN:
            raise OSError(f"it ended with {process.returncode}")
        if process.returncode:
            return None
        return NoticeText.parse(output.decode(errors="replace").partition("\n")[0])


def as_message(termination: Termination | None) -> DrainRequest:
    """The message to the server; None: the node does not leave after all."""
    if termination is None:
        return DrainRequest("", 0, over=True)
    within_ms = max(0, round((termination.at - _now()) * 1000))
    return DrainRequest(termination.reason, within_ms, termination.moves)


def _now() -> float:
    return asyncio.get_running_loop().time()
