"""Machines made, listed and removed by commands of yours: whatever has a command line will do. [I/O]"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping

from rota.model.amounts import CPU
from rota.providers.protocol import Order, ProviderFailed

_OUTPUT_BYTES = 1 << 20  # of a command, read: a list of ten thousand machines
_SAID_CHARACTERS = 300  # of what it said when it failed
_OWN = "ROTA_"


class Command:
    """The settings `create`, `list` and `remove` are command lines; what to do is in their environment."""

    async def create(self, order: Order) -> None:
        amounts = {
            f"{_OWN}MACHINE_{resource.upper()}": f"{amount / 1000:g}" if resource == CPU else str(amount)
            for resource, amount in order.capacity.items()
        }
        labels = ",".join(f"{key}={value}" for key, value in order.labels.items())
        about = {"JOIN": order.join, "LABELS": labels}
        said = {f"{_OWN}{name}": value for name, value in about.items()}
        await _run("create", order.settings, {**_who(order.cluster, order.machine), **said, **amounts})

    async def list(self, cluster: str, settings: Mapping[str, str]) -> frozenset[str]:
        printed = await _run("list", settings, _who(cluster, ""))
        return frozenset(line.strip() for line in printed.splitlines() if line.strip())

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        await _run("remove", settings, _who(cluster, machine))


def _who(cluster: str, machine: str) -> dict[str, str]:
    return {f"{_OWN}CLUSTER": cluster, f"{_OWN}MACHINE": machine}


async def _run(verb: str, settings: Mapping[str, str], about: Mapping[str, str]) -> str:
    """What it printed. It dies with whoever waits for it."""
    try:
        line = shlex.split(settings[verb])
        process = await asyncio.create_subprocess_exec(
            *line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**_environment(), **about},
        )
    except (OSError, ValueError, TypeError) as error:
        raise ProviderFailed(f"its {verb} command cannot be run: {error}") from error
    try:
        async with asyncio.TaskGroup() as tasks:
            out = tasks.create_task(_read(process.stdout))
            err = tasks.create_task(_read(process.stderr))
        code = await process.wait()
    finally:
        if process.returncode is None:  # nobody waits for it any more
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        said = " ".join((err.result() or out.result()).split())[-_SAID_CHARACTERS:]
        raise ProviderFailed(f"its {verb} command ended with {code}: {said or 'it said nothing'}")
    return out.result()


def _environment() -> dict[str, str]:
    """What the server has, for a cloud's own command line, but none of what is Rota's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}


async def _read(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None, "it is a pipe"
    found = b""
    while some := await stream.read(65_536):  # all of it, so that it never waits for us
        found = (found + some)[-_OUTPUT_BYTES:]
    return found.decode(errors="replace")
