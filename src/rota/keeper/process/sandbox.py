"""A command -> the same in a sandbox: it reads much of the machine, writes little, reaches nobody. [I/O]"""

import glob
import os
import shutil
import subprocess
from dataclasses import dataclass

from rota.keeper.process.users import drop_privileges

PROGRAM = "bwrap"
OWN_PROCESSES = 2  # that watch over the command, and count where processes are counted
PROBE_SECONDS = 10.0
REPORT_FD = 3  # its number for bubblewrap, which does not hand it on
REPORT_BYTES = 4096
SANDBOX_FAILED = 126
NOBODY = 65534
ROOT = 0
DEVICES = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")
RESOLVER = "/etc/resolv.conf"


@dataclass(frozen=True, slots=True)
class KeeperSandbox:
    """What a job says of its own."""

    network: bool = False
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxLayout:
    """Where it runs: the node's directory, of which it sees its own part only, and where it may write."""

    root: str
    own: tuple[str, ...]
    cwd: str
    has_gpus: bool = False


class SandboxReport:
    """What bubblewrap tells about the command beside its output; in memory, until it is looked at."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("report")

    def close(self) -> bool:
        """Whether the command had begun: only of one that had is its code told."""
        try:
            return b'"exit-code"' in os.pread(self.fd, REPORT_BYTES, 0)
        finally:
            os.close(self.fd)


def find_bwrap() -> str | None:
    """The program, if it works here for whoever the work may run as; None: it does not."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    users = (None, NOBODY) if os.geteuid() == ROOT else (None,)
    return program if all(_works(program, user) for user in users) else None


def wrap_argv(program: str, sandbox: KeeperSandbox, layout: SandboxLayout, *, reports: bool) -> list[str]:
    """What stands before the command. Later words lie over earlier ones."""
    writable = list(dict.fromkeys((*layout.own, layout.cwd, *sandbox.writable)))
    inner = [path for path in writable if path.startswith(f"{layout.root}/")]
    outer = [path for path in writable if path not in inner]  # of these some may be around the node's own
    return [
        *_isolation_options(program),
        *(("--json-status-fd", str(REPORT_FD)) if reports else ()),
        *(() if sandbox.network else ("--unshare-net",)),
        *(word for path in _resolver_paths(sandbox) for word in ("--ro-bind-try", path, path)),
        *(word for path in outer for word in ("--bind", path, path)),
        *("--tmpfs", layout.root),
        *(word for path in inner for word in ("--bind", path, path)),
        *(word for path in _devices(layout) for word in ("--dev-bind", path, path)),
        *("--chdir", layout.cwd, "--"),
    ]


def missing_path(sandbox: KeeperSandbox) -> str | None:
    """The first path that is to be writable and is not there."""
    return next((path for path in sandbox.writable if not os.path.exists(path)), None)


def _isolation_options(program: str) -> list[str]:
    """It dies with whoever watches it, whose group is not its own: a signal for it is sent to itself."""
    return [
        *(program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run"),
    ]


def _resolver_paths(sandbox: KeeperSandbox) -> list[str]:
    """Where names are resolved, which may lie in a directory that it does not see."""
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
