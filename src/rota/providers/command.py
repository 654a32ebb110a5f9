"""Machines made, listed and removed by commands of yours: whatever has a command line will do. [I/O]"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping, Sequence

from rota.model.amounts import CPU
from rota.providers.protocol import MachineOrder, ProviderFailed

_OUTPUT_BYTES = 1 << 20  # of a command, read: a list of ten thousand machines
_READ_BYTES = 1 << 16
_ERROR_CHARACTERS = 300  # of what it said when it failed
_DRAIN_SECONDS = 0.5  # of a command that has ended: they are in the pipe by then
_ENV_PREFIX = "ROTA_"


class CommandProvider:
    """The settings `create`, `list` and `remove` are command lines; what to do is in their environment."""

    place = ""  # the commands are the same wherever a server runs

    def for_place(self, place: str) -> "CommandProvider":
        del place
        return self

    async def create(self, order: MachineOrder) -> None:
        amounts = {
            f"{_ENV_PREFIX}MACHINE_{resource.upper()}": f"{amount / 1000:g}"
            if resource == CPU
            else str(amount)
            for resource, amount in order.capacity.items()
        }
        labels = ",".join(f"{key}={value}" for key, value in order.labels.items())
        about = {"JOIN": order.join_line, "LABELS": labels}
        said = {f"{_ENV_PREFIX}{name}": value for name, value in about.items()}
        await _run(
            "create", order.settings, {**_identity_env(order.cluster, order.machine), **said, **amounts}
        )

    async def list(self, cluster: str, settings: Mapping[str, str]) -> Sequence[str]:
        printed = await _run("list", settings, _identity_env(cluster, ""))
        if printed.is_truncated:  # what is missing from a list counts as gone
            raise ProviderFailed(f"its list command printed more than {_OUTPUT_BYTES} bytes")
        return [line.strip() for line in printed.text.splitlines() if line.strip()]

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        await _run("remove", settings, _identity_env(cluster, machine))


def _identity_env(cluster: str, machine: str) -> dict[str, str]:
    return {f"{_ENV_PREFIX}CLUSTER": cluster, f"{_ENV_PREFIX}MACHINE": machine}


async def _run(verb: str, settings: Mapping[str, str], about: Mapping[str, str]) -> "_PipeReader":
    """What it printed. It dies with whoever waits for it."""
    with contextlib.ExitStack() as heard:
        try:
            out, err = (heard.enter_context(contextlib.closing(_PipeReader())) for _ in range(2))
            line = shlex.split(settings[verb])
            process = await asyncio.create_subprocess_exec(
                *line,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out.write_end,
                stderr=err.write_end,
                start_new_session=True,
                env={**_environment(), **about},
            )
        except (OSError, ValueError, TypeError) as error:
            raise ProviderFailed(f"its {verb} command cannot be run", str(error)) from error
        out.close_write_end()
        err.close_write_end()
        code = await _wait_or_kill(process)
        with contextlib.suppress(TimeoutError):  # what it has left running may hold its output open for ever
            async with asyncio.timeout(_DRAIN_SECONDS):
                await out.ended.wait()
                await err.ended.wait()
    if code:
        said = " ".join((err.text or out.text).split())[-_ERROR_CHARACTERS:]
        raise ProviderFailed(f"its {verb} command ended with {code}", said or "it said nothing")
    return out


async def _wait_or_kill(process: asyncio.subprocess.Process) -> int:
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # nobody waits for it any more
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """What the server has, for a cloud's own command line, but none of what is Rota's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_ENV_PREFIX)}


class _PipeReader:
    """The last of what comes through a pipe: all is read, so that nobody ever waits for us.

    A pipe of our own: one that is asked for with the process may be left open in what it starts. And read
    here: uvloop closes what it is given to read from twice, the second time perhaps a file of another thread.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.ended = asyncio.Event()
        self._output = bytearray()
        self.is_truncated = False  # more came than is kept
        asyncio.get_running_loop().add_reader(self._read_end, self._read)

    @property
    def text(self) -> str:
        return self._output.decode(errors="replace")

    def close_write_end(self) -> None:
        """On our side: others may still write."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        self.close_write_end()
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)

    def _read(self) -> None:
        try:
            said = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return
        if not said:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self.ended.set()
        self._output += said
        self.is_truncated = self.is_truncated or len(self._output) > _OUTPUT_BYTES
        del self._output[:-_OUTPUT_BYTES]
