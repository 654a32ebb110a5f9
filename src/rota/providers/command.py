"""Machines made, listed and removed by commands of yours: whatever has a command line will do. [I/O]"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping, Sequence

from rota.model.amounts import CPU
from rota.providers.protocol import Order, ProviderFailed

_OUTPUT_BYTES = 1 << 20  # of a command, read: a list of ten thousand machines
_AT_ONCE_BYTES = 1 << 16
_SAID_CHARACTERS = 300  # of what it said when it failed
_LAST_WORDS_SECONDS = 0.5  # of a command that has ended: they are in the pipe by then
_OWN = "ROTA_"


class Command:
    """The settings `create`, `list` and `remove` are command lines; what to do is in their environment."""

    place = ""  # the commands are the same wherever a server runs

    def at(self, place: str) -> "Command":
        del place
        return self

    async def create(self, order: Order) -> None:
        amounts = {
            f"{_OWN}MACHINE_{resource.upper()}": f"{amount / 1000:g}" if resource == CPU else str(amount)
            for resource, amount in order.capacity.items()
        }
        labels = ",".join(f"{key}={value}" for key, value in order.labels.items())
        about = {"JOIN": order.join, "LABELS": labels}
        said = {f"{_OWN}{name}": value for name, value in about.items()}
        await _run("create", order.settings, {**_who(order.cluster, order.machine), **said, **amounts})

    async def list(self, cluster: str, settings: Mapping[str, str]) -> Sequence[str]:
        printed = await _run("list", settings, _who(cluster, ""))
        if printed.is_cut:  # what is missing from a list counts as gone
            raise ProviderFailed(f"its list command printed more than {_OUTPUT_BYTES} bytes")
        return [line.strip() for line in printed.text.splitlines() if line.strip()]

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        await _run("remove", settings, _who(cluster, machine))


def _who(cluster: str, machine: str) -> dict[str, str]:
    return {f"{_OWN}CLUSTER": cluster, f"{_OWN}MACHINE": machine}


async def _run(verb: str, settings: Mapping[str, str], about: Mapping[str, str]) -> "_Heard":
    """What it printed. It dies with whoever waits for it."""
    with contextlib.ExitStack() as heard:
        try:
            out, err = (heard.enter_context(contextlib.closing(_Heard())) for _ in range(2))
            line = shlex.split(settings[verb])
            process = await asyncio.create_subprocess_exec(
                *line,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out.end,
                stderr=err.end,
                start_new_session=True,
                env={**_environment(), **about},
            )
        except (OSError, ValueError, TypeError) as error:
            raise ProviderFailed(f"its {verb} command cannot be run", str(error)) from error
        out.hang_up()
        err.hang_up()
        code = await _ended(process)
        with contextlib.suppress(TimeoutError):  # what it has left running may hold its output open for ever
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await out.over.wait()
                await err.over.wait()
    if code:
        said = " ".join((err.text or out.text).split())[-_SAID_CHARACTERS:]
        raise ProviderFailed(f"its {verb} command ended with {code}", said or "it said nothing")
    return out


async def _ended(process: asyncio.subprocess.Process) -> int:
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # nobody waits for it any more
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """What the server has, for a cloud's own command line, but none of what is Rota's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}


class _Heard:
    """The last of what comes through a pipe: all is read, so that nobody ever waits for us.

    A pipe of our own: one that is asked for with the process may be left open in what it starts. And read
    here: uvloop closes what it is given to read from twice, the second time perhaps a file of another thread.
    """

    def __init__(self) -> None:
        self._from, self.end = os.pipe()
        os.set_blocking(self._from, False)
        self.over = asyncio.Event()
        self._said = bytearray()
        self.is_cut = False  # more came than is kept
        asyncio.get_running_loop().add_reader(self._from, self._read)

    @property
    def text(self) -> str:
        return self._said.decode(errors="replace")

    def hang_up(self) -> None:
        """On our side: others may still write."""
        if self.end >= 0:
            os.close(self.end)
            self.end = -1

    def close(self) -> None:
        self.hang_up()
        asyncio.get_running_loop().remove_reader(self._from)
        os.close(self._from)

    def _read(self) -> None:
        try:
            said = os.read(self._from, _AT_ONCE_BYTES)
        except BlockingIOError:
            return
        if not said:
            asyncio.get_running_loop().remove_reader(self._from)
            self.over.set()
        self._said += said
        self.is_cut = self.is_cut or len(self._said) > _OUTPUT_BYTES
        del self._said[:-_OUTPUT_BYTES]
