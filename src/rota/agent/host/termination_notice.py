"""What a command of its owner says -> whether this machine is taken away soon, why, and when. [I/O]"""

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
_ANSWER_SECONDS = 10.0  # a command that takes longer has said nothing
_NOT_RUN = (126, 127)  # how a shell or env says that there is no such command
_NO_REASON = "its provider takes the machine away"


class NoticeText(NamedTuple):
    """By the first line that the command printed: `90s maintenance of the host`, or either half of it."""

    reason: str
    seconds: float

    @classmethod
    def parse(cls, line: str) -> "NoticeText":
        words = "".join(letter for letter in line.strip() if letter.isprintable())[:NOTICE_WORDS_MAX]
        first, _, rest = words.partition(" ")
        try:
            return cls(rest.strip() or _NO_REASON, parse_seconds("notice", first, DRAIN_SECONDS_MAX))
        except BadField:
            return cls(words or _NO_REASON, NOTICE_SECONDS)


class Termination(NamedTuple):
    """That this node will leave."""

    reason: str
    at: float  # by the loop's clock
    moves: bool  # what still runs then is moved; else it is ended here


class TerminationState:
    """Whether it is in force. Given once, its time does not change; several looks that find none end it."""

    def __init__(self) -> None:
        self.termination: Termination | None = None
        self._missed = 0

    def update(self, said: NoticeText | None, now: float) -> bool:
        """Whether that changes anything."""
        before = self.termination
        self._missed = 0 if said is not None else self._missed + 1
        if said is not None:
            self.termination = before or Termination(said.reason, now + said.seconds, moves=True)
        elif self._missed >= NOTICE_NO_LOOKS:
            self.termination = None
        return self.termination is not before


class TerminationWatcher:
    """Whether this node will leave: told to, or by what the command says, which is asked again and again."""

    def __init__(self, command: str | None, node: str) -> None:
        self._command = command
        self._environ = {**os.environ, "ROTA_NODE": node}
        self._notice = TerminationState()
        self._requested: Termination | None = None
        self._trouble: str | None = None  # why the command says nothing at all

    @property
    def termination(self) -> Termination | None:
        return self._notice.termination or self._requested

    @property
    def is_terminating(self) -> bool:
        return self._notice.termination is not None

    @property
    def last_change(self) -> str:
        """What the last look has changed, in words."""
        if self._trouble is not None:
            return f"the notice command says nothing: {self._trouble}"
        departure = self._notice.termination
        if departure is None:
            return "this machine stays after all"
        return f"this machine is taken away in {departure.at - _now():.0f} s: {departure.reason}"

    def leave_within(self, seconds: float, reason: str) -> None:
        self._requested = Termination(reason, _now() + seconds, moves=False)

    async def watch(self, changed: Callable[[], None]) -> None:
        """For ever, if there is a command; calls `changed` when there is something to tell."""
        while self._command is not None:
            await asyncio.sleep(POLL_SECONDS)
            if await self.poll():
                changed()

    async def poll(self) -> bool:
        """Whether anything is different now; what cannot be asked changes nothing but the trouble."""
        if self._command is None:
            return False
        before, self._trouble = self._trouble, None
        try:
            said = await self._ask(self._command)
        except TimeoutError:
            self._trouble = f"it takes longer than {_ANSWER_SECONDS:g} s"
            return self._trouble != before
        except OSError as error:
            self._trouble = f"it cannot be run: {error}"
            return self._trouble != before
        return self._notice.update(said, _now())

    async def _ask(self, command: str) -> NoticeText | None:
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


def as_message(departure: Termination | None) -> DrainRequest:
    """None: it does not leave after all."""
    if departure is None:
        return DrainRequest("", 0, over=True)
    return DrainRequest(departure.reason, max(0, round((departure.at - _now()) * 1000)), departure.moves)


def _now() -> float:
    return asyncio.get_running_loop().time()
