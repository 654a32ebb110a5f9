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
from rota.model.sync import Drain

LOOK_SECONDS = 5.0
_ANSWER_SECONDS = 10.0  # a command that takes longer has said nothing
_NOT_RUN = (126, 127)  # how a shell or env says that there is no such command
_UNSAID = "its provider takes the machine away"


class Said(NamedTuple):
    """By the first line that the command printed: `90s maintenance of the host`, or either half of it."""

    reason: str
    seconds: float

    @classmethod
    def by(cls, line: str) -> "Said":
        words = "".join(letter for letter in line.strip() if letter.isprintable())[:NOTICE_WORDS_MAX]
        first, _, rest = words.partition(" ")
        try:
            return cls(rest.strip() or _UNSAID, parse_seconds("notice", first, DRAIN_SECONDS_MAX))
        except BadField:
            return cls(words or _UNSAID, NOTICE_SECONDS)


class Departure(NamedTuple):
    """That this node will leave."""

    reason: str
    at: float  # by the loop's clock
    moves: bool  # what still runs then is moved; else it is ended here


class Notice:
    """Whether it is in force. Given once, its time does not change; several looks that find none end it."""

    def __init__(self) -> None:
        self.departure: Departure | None = None
        self._missed = 0

    def heard(self, said: Said | None, now: float) -> bool:
        """Whether that changes anything."""
        before = self.departure
        self._missed = 0 if said is not None else self._missed + 1
        if said is not None:
            self.departure = before or Departure(said.reason, now + said.seconds, moves=True)
        elif self._missed >= NOTICE_NO_LOOKS:
            self.departure = None
        return self.departure is not before


class Lookout:
    """Whether this node will leave: told to, or by what the command says, which is asked again and again."""

    def __init__(self, command: str | None, node: str) -> None:
        self._command = command
        self._environ = {**os.environ, "ROTA_NODE": node}
        self._notice = Notice()
        self._told: Departure | None = None
        self._trouble: str | None = None  # why the command says nothing at all

    @property
    def departure(self) -> Departure | None:
        return self._notice.departure or self._told

    @property
    def is_taken_away(self) -> bool:
        return self._notice.departure is not None

    @property
    def news(self) -> str:
        """What the last look has changed, in words."""
        if self._trouble is not None:
            return f"the notice command says nothing: {self._trouble}"
        departure = self._notice.departure
        if departure is None:
            return "this machine stays after all"
        return f"this machine is taken away in {departure.at - _now():.0f} s: {departure.reason}"

    def leave_within(self, seconds: float, reason: str) -> None:
        self._told = Departure(reason, _now() + seconds, moves=False)

    async def watch(self, changed: Callable[[], None]) -> None:
        """For ever, if there is a command; calls `changed` when there is something to tell."""
        while self._command is not None:
            await asyncio.sleep(LOOK_SECONDS)
            if await self.look():
                changed()

    async def look(self) -> bool:
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
        return self._notice.heard(said, _now())

    async def _ask(self, command: str) -> Said | None:
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
        return Said.by(output.decode(errors="replace").partition("\n")[0])


def as_word(departure: Departure | None) -> Drain:
    """None: it does not leave after all."""
    if departure is None:
        return Drain("", 0, over=True)
    return Drain(departure.reason, max(0, round((departure.at - _now()) * 1000)), departure.moves)


def _now() -> float:
    return asyncio.get_running_loop().time()
