"""Which container runtime this machine has: podman, else a docker whose engine answers. [I/O]"""

import asyncio
import ctypes
import errno
import os
import shutil
from pathlib import Path

from rota.runtimes.protocol import ContainerEngine

NONE, PODMAN, DOCKER = "none", "podman", "docker"
_ASK_SECONDS = 10.0  # one that takes longer to answer would take longer to start anything
_WHILE_IT_IS_WRITTEN_SECONDS = (0.01, 0.1, 1.0, 1.0)
_ALIVE = {
    PODMAN: ("info", "--format", "{{.Host.CgroupManager}} {{.Host.CgroupsVersion}}"),
    DOCKER: ("version", "--format", "{{.Server.Version}}"),
}
# Where podman looks for the first process that it offers; docker brings its own.
_INIT = ("/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/lib/podman", "/usr/bin", "/usr/local/bin")
_PR_SET_NO_NEW_PRIVS = 38


async def find(wanted: str | None, mounts: tuple[str, ...], *, root: bool) -> ContainerEngine | None:
    """What was named, or the first that works; None: there is none, or none is wanted."""
    names = (PODMAN, DOCKER) if wanted is None else () if wanted == NONE else (wanted,)
    for name in names:
        program = shutil.which(name)
        kind = DOCKER if DOCKER in Path(name).name else PODMAN
        if kind == PODMAN and os.geteuid() != 0:  # a stop does not reach its containers in time
            continue
        if program is not None and (said := await _ask(program, *_ALIVE[kind])):
            is_old = said.split() == ["cgroupfs", "v1"]
            return ContainerEngine(kind, program, mounts, root, kind == DOCKER or _has_init(), is_old)
    return None


def labels_of(engine: ContainerEngine | None, wanted: str | None) -> dict[str, str]:
    """The runtime by its kind; or that there is one, which only a root agent could use."""
    if engine is not None:
        return {"container": engine.kind}
    name = PODMAN if wanted is None else wanted
    is_podman = name != NONE and DOCKER not in Path(name).name
    return {PODMAN: "rootless"} if is_podman and os.geteuid() != 0 and shutil.which(name) else {}


def _has_init() -> bool:
    return any(os.path.exists(f"{place}/catatonit") for place in _INIT)


async def _ask(*words: str) -> str | None:
    """What it answers, asked as the keeper will: without a way to more privileges. None: nothing."""
    try:
        process = await _begin(*words)
    except OSError:  # it is there, and no program of this machine
        return None
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return said.decode(errors="replace").strip() if process.returncode == 0 else None


async def _begin(*words: str) -> asyncio.subprocess.Process:
    """One that is just being written can be run a moment later; who asks does so once in its life."""
    for pause in _WHILE_IT_IS_WRITTEN_SECONDS:
        try:
            return await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                preexec_fn=_renounce,
            )
        except OSError as error:
            if error.errno != errno.ETXTBSY:
                raise
            await asyncio.sleep(pause)
    raise TimeoutError(f"{words[0]} is being written")


_libc = ctypes.PyDLL(None)


def _renounce() -> None:
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
