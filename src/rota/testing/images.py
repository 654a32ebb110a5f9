"""A tiny image for tests, made of a static busybox: nothing is pulled. [I/O]"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

IMAGE = "localhost/rota-test:1"
TOOLS = ("sh", "cat", "echo", "env", "false", "grep", "id", "ls", "pwd", "sleep", "tail", "touch", "true")


@cache
def engine() -> str | None:
    """The container runtime usable by this user; None if there is none."""
    program = shutil.which("podman")
    if program is None or os.geteuid() != 0 or _run(program, "info").returncode:
        return None
    return program


def old_groups() -> bool:
    """Whether the runtime uses cgroups v1 through cgroupfs."""
    info = _run(str(engine()), "info", "--format", "{{.Host.CgroupManager}} {{.Host.CgroupsVersion}}")
    return info.stdout.split() == [b"cgroupfs", b"v1"]


def ensure_image(directory: Path) -> str:
    """Build the image in `directory` unless the runtime has it; return its name."""
    program = engine()
    assert program is not None, "there is no container runtime here"
    if _run(program, "image", "exists", IMAGE).returncode:
        _build(program, directory)
    return IMAGE


def _build(program: str, directory: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None, "install busybox-static"
    (directory / "bin").mkdir(parents=True)
    (directory / "tmp").mkdir(mode=0o777)
    os.chmod(directory / "tmp", 0o1777)
    shutil.copy(busybox, directory / "bin" / "busybox")
    for tool in TOOLS:
        (directory / "bin" / tool).symlink_to("busybox")
    archive = subprocess.run(
        ["tar", "-C", str(directory), "--owner=0", "--group=0", "-c", "."], stdout=subprocess.PIPE, check=True
    )
    subprocess.run([program, "import", "-", IMAGE], input=archive.stdout, capture_output=True, check=True)


def containers() -> list[str]:
    """Names of all containers that Rota has started."""
    program = engine()
    if program is None:
        return []
    done = _run(program, "ps", "--all", "--filter", "label=rota.keeper", "--format", "{{.Names}}")
    return done.stdout.decode().split()


def remove(*names: str) -> None:
    program = engine()
    if program is not None and names:
        _run(program, "kill", *names)
        _run(program, "rm", "--force", *names)


def _run(*argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
