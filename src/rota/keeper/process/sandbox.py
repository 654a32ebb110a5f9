"""Sandboxes: a command wrapped in bubblewrap, with a read-only view of the machine. [I/O]"""

import glob
import os
import shutil
import subprocess
from dataclasses import dataclass

from rota.keeper.process.users import drop_privileges

PROGRAM = "bwrap"
OWN_PROCESSES = 2  # of bubblewrap itself, which count against the process limit
PROBE_SECONDS = 10.0
REPORT_FD = 3  # descriptor in bubblewrap, which does not pass it on
REPORT_BYTES = 4096
SANDBOX_FAILED = 126
NOBODY = 65534
ROOT = 0
DEVICES = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")
RESOLVER = "/etc/resolv.conf"


@dataclass(frozen=True, slots=True)
class KeeperSandbox:
    """The sandbox of a spec."""

    network: bool = False
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxLayout:
    """Paths of a sandbox: the keeper's directory, the parts that the task sees, its working directory."""

    root: str
    own: tuple[str, ...]
    cwd: str
    has_gpus: bool = False


class SandboxReport:
    """The status that bubblewrap writes about the command, in a memory file."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("report")

    def close(self) -> bool:
        """Close the file; return whether the command had started: only then its exit code is in there."""
        try:
            return b'"exit-code"' in os.pread(self.fd, REPORT_BYTES, 0)
        finally:
            os.close(self.fd)


def find_bwrap() -> str | None:
    """The path of bubblewrap, if it works here for all users that tasks may run as; else None."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    users = (None, NOBODY) if os.geteuid() == ROOT else (None,)
    return program if all(_works(program, user) for user in users) else None


def wrap_argv(program: str, sandbox: KeeperSandbox, layout: SandboxLayout, *, reports: bool) -> list[str]:
    """The arguments before the command. Later mounts cover earlier ones, so their order matters."""
    writable = list(dict.fromkeys((*layout.own, layout.cwd, *sandbox.writable)))
    inner = [path for path in writable if path.startswith(f"{layout.root}/")]
    outer = [path for path in writable if path not in inner]  # may contain the keeper's directory
    return [
        *_isolation_options(program),
        *(("--json-status-fd", str(REPORT_FD)) if reports else ()),
        *(() if sandbox.network else ("--unshare-net",)),
        *(option for path in _resolver_paths(sandbox) for option in ("--ro-bind-try", path, path)),
        *(option for path in outer for option in ("--bind", path, path)),
        *("--tmpfs", layout.root),
        *(option for path in inner for option in ("--bind", path, path)),
        *(option for path in _devices(layout) for option in ("--dev-bind", path, path)),
        *("--chdir", layout.cwd, "--"),
    ]


def missing_path(sandbox: KeeperSandbox) -> str | None:
    """The first writable path that does not exist."""
    return next((path for path in sandbox.writable if not os.path.exists(path)), None)


def _isolation_options(program: str) -> list[str]:
    """Namespaces and mounts of every sandbox. The command has its own session, and is signalled itself."""
    return [
        *(program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run"),
    ]


def _resolver_paths(sandbox: KeeperSandbox) -> list[str]:
    """The resolver's configuration, if it lies below /run, which the sandbox does not see."""
    real = os.path.realpath(RESOLVER)
    return [real] if sandbox.network and real.startswith("/run/") else []


def _devices(layout: SandboxLayout) -> list[str]:
    return [path for pattern in DEVICES for path in glob.glob(pattern)] if layout.has_gpus else []


def _works(program: str, user: int | None) -> bool:
    try:
        done = subprocess.run(
            [*_isolation_options(program), "--unshare-net", "--", "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
            cwd="/",
            user=user,
            group=user,
            extra_groups=None if user is None else (),
            preexec_fn=drop_privileges,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
