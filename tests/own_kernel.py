"""Runs a command under a Linux kernel of its own that has control groups of version 2 and all controllers.

Many machines mount version 1, or keep the controllers of version 2 to themselves. There are two ways to a
kernel of our own, and both see this machine's files:

- user-mode Linux: a kernel that is an ordinary process. It is the faster one, and does not run on every CPU.
- an emulated machine: Debian's kernel in qemu without hardware support. It runs everywhere and takes three
  times as long.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

import rota.keeper

# What the tests are made of, and where users find it inside who may not enter its directory out here.
MADE_OF = {
    "/run/repository": Path(__file__).parents[1],
    "/run/source": Path(rota.keeper.__file__).parents[2],
    "/run/packages": Path(pytest.__file__).parents[1],
    "/run/python": Path(sys.base_prefix),
}
SECONDS = 1200
MEMORY_MIB = 1024
_PROBE_SECONDS = 60
_BOOTED = "booted"
_MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "netfs",
    "fscache",
    "9pnet",
    "9p",
    "9pnet_virtio",
)
SETUP = """
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
""" + "".join(
    f"mkdir {place}\nmount --bind {shlex.quote(str(path))} {place}\n" for place, path in MADE_OF.items()
)
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "PYTHONPATH": "/run/source:/run/packages",
    "PYTHONDONTWRITEBYTECODE": "1",
    "ROTA_TEST_OWN_KERNEL": "cgroup-v2",
    "ROTA_TEST_PATIENCE_SECONDS": "180",
    "ROTA_TEST_CROWD": "50",
}


def run_inside(directory: Path, setup: str, command: str) -> str:
    """What the command printed, in a kernel that `setup` prepares; `directory` must be empty."""
    output, init = directory / "said", directory / "init"
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in _ENVIRONMENT.items())
    # Where neither way of powering off is there, the end of the first process is a panic, which ends it too.
    off = "sync\necho o > /proc/sysrq-trigger || halt -f\nsleep 5\n"
    run = f"cd /run/repository\n{command} > {shlex.quote(str(output))} 2>&1\n{off}"
    init.write_text(f"#!/bin/sh\n{exports}{setup}{run}")
    init.chmod(0o755)
    console = _boot(directory, init, SECONDS)
    return output.read_text() if output.exists() else console


def _boot(directory: Path, init: Path, seconds: float) -> str:
    if why_user_mode_does_not_boot() is None:
        return _run(_user_mode(directory, init), directory / "console", seconds)
    return _run(_emulated(directory, init), directory / "console", seconds)


@cache
def why_user_mode_does_not_boot() -> str | None:
    """Some CPUs do not let it set its floating-point registers: only trying it tells."""
    if shutil.which("linux.uml") is None:
        return "it is not installed"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        init = directory / "init"
        init.write_text(f"#!/bin/sh\necho {_BOOTED} > {directory}/said\nexit 0\n")
        init.chmod(0o755)
        console = _run(_user_mode(directory, init), directory / "console", _PROBE_SECONDS)
        if (directory / "said").exists():
            return None
        last = [line.strip() for line in console.splitlines() if line.strip()]
        return last[-1][:200] if last else "it printed nothing"


@cache
def why_emulation_does_not_work() -> str | None:
    if shutil.which("qemu-system-x86_64") is None:
        return "qemu-system-x86 is not installed"
    try:
        debian_kernel()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"Debian's kernel cannot be had: {error}"
    return None


@cache
def debian_kernel() -> Path:
    """The directory of Debian's kernel and its modules, fetched by apt the first time."""
    place = Path(sys.prefix) / "own-kernel"
    if not (place / "boot").exists():
        with tempfile.TemporaryDirectory(dir=Path(sys.prefix)) as name:
            asked = ["apt-cache", "depends", "--important", "linux-image-amd64"]
            output = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
            package = next(
                line.split()[-1] for line in output.splitlines() if "Depends: linux-image-" in line
            )
            subprocess.run(
                ["apt-get", "download", "--quiet", package], cwd=name, check=True, capture_output=True
            )
            archive = next(Path(name).glob("*.deb"))
            subprocess.run(["dpkg-deb", "--extract", str(archive), f"{name}/kernel"], check=True)
            os.rename(f"{name}/kernel", place)
    return place


def _user_mode(directory: Path, init: Path) -> list[str]:
    root = ["rootfstype=hostfs", "rootflags=/", "rw", f"init={init}"]
    return [
        "linux.uml",
        *root,
        f"mem={MEMORY_MIB}M",
        "con=null",
        "con0=null,fd:1",
        f"uml_dir={directory}",
        "quiet",
    ]


def _emulated(directory: Path, init: Path) -> list[str]:
    kernel = next((debian_kernel() / "boot").glob("vmlinuz-*"))
    options = {
        "-machine": "q35",
        "-cpu": "max",
        "-m": str(MEMORY_MIB),
        "-smp": "2",
        "-net": "none",
        "-kernel": str(kernel),
        "-initrd": str(_first_files(directory, init)),
        "-append": "console=ttyS0 quiet panic=-1",
        # Files of this machine, seen as they are: by their own owners, and across file systems.
        "-virtfs": "local,path=/,mount_tag=root,security_model=none,multidevs=remap",
    }
    return [
        "qemu-system-x86_64",
        "-nographic",
        "-no-reboot",
        *(word for pair in options.items() for word in pair),
    ]


def _first_files(directory: Path, init: Path) -> Path:
    """An initial file system with no more than it takes to mount this machine's files."""
    tree = directory / "first-files"
    for name in ("bin", "modules", "root", "dev"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "busybox", tree / "bin" / "busybox")
    found = {path.stem: path for path in (debian_kernel() / "lib" / "modules").rglob("*.ko")}
    for module in _MODULES:
        shutil.copy(found[module], tree / "modules")
    load = "".join(f"/bin/busybox insmod /modules/{module}.ko\n" for module in _MODULES)
    mount = "trans=virtio,version=9p2000.L,msize=512000,cache=loose"
    (tree / "init").write_text(
        "#!/bin/busybox sh\n/bin/busybox mount -t devtmpfs none /dev\n"
        f"{load}/bin/busybox mount -t 9p -o {mount} root /root\n"
        f"exec /bin/busybox switch_root /root {shlex.quote(str(init))}\n"
    )
    (tree / "init").chmod(0o755)
    archive = directory / "first-files.cpio"
    pack = f"find . | busybox cpio -o -H newc > {shlex.quote(str(archive))}"
    subprocess.run(["sh", "-c", pack], cwd=tree, check=True, capture_output=True)
    return archive


def _run(command: list[str], console: Path, seconds: float) -> str:
    with console.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # it may be many processes, which a signal to all of them ends
        )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass  # what it printed until now tells more than that it was late
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return console.read_text(errors="replace")
