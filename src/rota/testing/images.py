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
    """The runtime with which containers can be run here, as this user; None: there is none."""
    program = shutil.which("podman")
    if program is None or os.geteuid() != 0 or _run(program, "info").returncode:
        return None
    return program


def old_groups() -> bool:
    """As an agent would find it."""
    said = _run(str(engine()), "info", "--format", "{{.Host.CgroupManager}} {{.Host.CgroupsVersion}}")
    return said.stdout.split() == [b"cgroupfs", b"v1"]


def ensure_image(directory: Path) -> str:
    """The image's name, once the runtime has it; `directory` is for what it is made of."""
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
    """The names of all there are of Rota's."""
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


def _run(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
