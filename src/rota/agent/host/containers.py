"""Detection of this machine's container runtime: podman, else docker if its engine answers. [I/O]"""

import asyncio
import ctypes
import errno
import os
import shutil
from pathlib import Path

from rota.runtimes.protocol import ContainerEngine

NONE, PODMAN, DOCKER = "none", "podman", "docker"
_ASK_SECONDS = 10.0  # a runtime that takes longer to answer is too slow to start containers
_BUSY_RETRY_SECONDS = (0.01, 0.1, 1.0, 1.0)
_ALIVE = {
    PODMAN: ("info", "--format", "{{.Host.CgroupManager}} {{.Host.CgroupsVersion}}"),
    DOCKER: ("version", "--format", "{{.Server.Version}}"),
}
# Where podman looks for its init process; docker has its own.
_INIT = ("/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/lib/podman", "/usr/bin", "/usr/local/bin")
_PR_SET_NO_NEW_PRIVS = 38


async def find(configured: str | None, mounts: tuple[str, ...], *, root: bool) -> ContainerEngine | None:
    """The configured runtime, or the first that works; None: there is none, or "none" is configured."""
    names = (PODMAN, DOCKER) if configured is None else () if configured == NONE else (configured,)
    for name in names:
        program = shutil.which(name)
        kind = DOCKER if DOCKER in Path(name).name else PODMAN
        if kind == PODMAN and os.geteuid() != 0:  # signals do not reach rootless containers in time
            continue
        if program is not None and (answer := await _ask(program, *_ALIVE[kind])):
            uses_cgroup_v1 = answer.split() == ["cgroupfs", "v1"]
            has_init = kind == DOCKER or _has_init()
            return ContainerEngine(kind, program, mounts, root, has_init, uses_cgroup_v1)
    return None


def labels_of(engine: ContainerEngine | None, configured: str | None) -> dict[str, str]:
    """The label of the runtime's kind; or of a rootless podman, which only a root agent could use."""
    if engine is not None:
        return {"container": engine.kind}
    name = PODMAN if configured is None else configured
    is_podman = name != NONE and DOCKER not in Path(name).name
    return {PODMAN: "rootless"} if is_podman and os.geteuid() != 0 and shutil.which(name) else {}


def _has_init() -> bool:
    return any(os.path.exists(f"{place}/catatonit") for place in _INIT)


async def _ask(*argv: str) -> str | None:
    """The output of a runtime's command; None if it fails. Without new privileges, as the keeper runs it."""
    try:
        process = await _start(*argv)
    except OSError:  # the file exists and cannot be executed here
        return None
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return output.decode(errors="replace").strip() if process.returncode == 0 else None


async def _start(*argv: str) -> asyncio.subprocess.Process:
    """Start a program; wait a little if it is being installed, because detection runs only once."""
    for retry_seconds in _BUSY_RETRY_SECONDS:
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                preexec_fn=_drop_privileges,
            )
        except OSError as error:
            if error.errno != errno.ETXTBSY:
                raise
            await asyncio.sleep(retry_seconds)
    raise TimeoutError(f"{argv[0]} is being written")


_libc = ctypes.PyDLL(None)


def _drop_privileges() -> None:
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
