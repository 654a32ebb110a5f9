"""Machines created, listed and removed by commands of the operator. [I/O]"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping, Sequence

from rota.model.amounts import CPU
from rota.providers.protocol import MachineOrder, ProviderFailed

_OUTPUT_BYTES = 1 << 20  # of output that is kept: enough for a list of ten thousand machines
_READ_BYTES = 1 << 16
_ERROR_CHARACTERS = 300  # of its output that an error quotes
_DRAIN_SECONDS = 0.5  # for the rest of the output after a command has ended
_ENV_PREFIX = "ROTA_"


class CommandProvider:
    """The settings `create`, `list` and `remove` are command lines.

    Their arguments are in the environment.
    """

    place = ""  # the commands work from any server

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
        variables = {"JOIN": order.join_line, "LABELS": labels}
        output = {f"{_ENV_PREFIX}{name}": value for name, value in variables.items()}
        await _run(
            "create", order.settings, {**_identity_env(order.cluster, order.machine), **output, **amounts}
        )

    async def list(self, cluster: str, settings: Mapping[str, str]) -> Sequence[str]:
        printed = await _run("list", settings, _identity_env(cluster, ""))
        if printed.is_truncated:  # a machine missing from a list counts as removed
            raise ProviderFailed(f"its list command printed more than {_OUTPUT_BYTES} bytes")
        return [argv.strip() for argv in printed.text.splitlines() if argv.strip()]

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        await _run("remove", settings, _identity_env(cluster, machine))


def _identity_env(cluster: str, machine: str) -> dict[str, str]:
    return {f"{_ENV_PREFIX}CLUSTER": cluster, f"{_ENV_PREFIX}MACHINE": machine}


async def _run(verb: str, settings: Mapping[str, str], variables: Mapping[str, str]) -> "_PipeReader":
    """Run a command and return its output. The process is killed if the caller is canceled."""
    with contextlib.ExitStack() as pipes:
        try:
            out, err = (pipes.enter_context(contextlib.closing(_PipeReader())) for _ in range(2))
            argv = shlex.split(settings[verb])
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out.write_end,
                stderr=err.write_end,
                start_new_session=True,
                env={**_environment(), **variables},
            )
        except (OSError, ValueError, TypeError) as error:
            raise ProviderFailed(f"its {verb} command cannot be run", str(error)) from error
        out.close_write_end()
        err.close_write_end()
        code = await _wait_or_kill(process)
        with contextlib.suppress(TimeoutError):  # a process it left behind may keep the pipe open
            async with asyncio.timeout(_DRAIN_SECONDS):
                await out.ended.wait()
                await err.ended.wait()
    if code:
        output = " ".join((err.text or out.text).split())[-_ERROR_CHARACTERS:]
        raise ProviderFailed(f"its {verb} command ended with {code}", output or "it printed nothing")
    return out


async def _wait_or_kill(process: asyncio.subprocess.Process) -> int:
    try:
        return await process.wait()
    finally:
        if process.returncode is None:  # canceled or timed out
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """The server's environment, for command lines of clouds, without Rota's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_ENV_PREFIX)}


class _PipeReader:
    """Keeps the last bytes from a pipe; everything is read, so that the writer never blocks.

    The pipe is our own: one that asyncio creates with the process may stay open in grandchildren. It is read
    with add_reader: uvloop closes a pipe transport twice, the second time perhaps a descriptor of another
    thread.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.ended = asyncio.Event()
        self._output = bytearray()
        self.is_truncated = False  # more was printed than is kept
        asyncio.get_running_loop().add_reader(self._read_end, self._read)

    @property
    def text(self) -> str:
        return self._output.decode(errors="replace")

    def close_write_end(self) -> None:
        """Close our write end; the process keeps its own."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        self.close_write_end()
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)

    def _read(self) -> None:
        try:
            output = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return
        if not output:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self.ended.set()
        self._output += output
        self.is_truncated = self.is_truncated or len(self._output) > _OUTPUT_BYTES
        del self._output[:-_OUTPUT_BYTES]
