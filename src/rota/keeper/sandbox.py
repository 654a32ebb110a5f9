"""A command -> the same in a sandbox: it reads much of the machine, writes little, reaches nobody. [I/O]"""

import glob
import os
import shutil
import subprocess
from dataclasses import dataclass

from rota.keeper.process.users import renounce

PROGRAM = "bwrap"
OWN_PROCESSES = 2  # that watch over the command, and count where processes are counted
PROBE_SECONDS = 10.0
REPORT_FD = 3  # its number for bubblewrap, which does not hand it on
REPORT_BYTES = 4096
CANNOT_BEGIN = 126
UNATTRIBUTED = 65534
ROOT = 0
DEVICES = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")
RESOLVER = "/etc/resolv.conf"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a job says of its own."""

    network: bool = False
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs: the node's directory, of which it sees its own part only, and where it may write."""

    root: str
    own: tuple[str, ...]
    cwd: str
    has_gpus: bool = False


class Report:
    """What bubblewrap tells about the command beside its output; in memory, until it is looked at."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("report")

    def close(self) -> bool:
        """Whether the command had begun: only of one that had is its code told."""
        try:
            return b'"exit-code"' in os.pread(self.fd, REPORT_BYTES, 0)
        finally:
            os.close(self.fd)


def find() -> str | None:
    """The program, if it works here for whoever the work may run as; None: it does not."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    users = (None, UNATTRIBUTED) if os.geteuid() == ROOT else (None,)
    return program if all(_works(program, user) for user in users) else None


def wrap(program: str, sandbox: Sandbox, place: Place, *, reports: bool) -> list[str]:
    """What stands before the command. Later words lie over earlier ones."""
    writable = list(dict.fromkeys((*place.own, place.cwd, *sandbox.writable)))
    inner = [path for path in writable if path.startswith(f"{place.root}/")]
    outer = [path for path in writable if path not in inner]  # of these some may be around the node's own
    return [
        *_walls(program),
        *(("--json-status-fd", str(REPORT_FD)) if reports else ()),
        *(() if sandbox.network else ("--unshare-net",)),
        *(word for path in _seen(sandbox) for word in ("--ro-bind-try", path, path)),
        *(word for path in outer for word in ("--bind", path, path)),
        *("--tmpfs", place.root),
        *(word for path in inner for word in ("--bind", path, path)),
        *(word for path in _devices(place) for word in ("--dev-bind", path, path)),
        *("--chdir", place.cwd, "--"),
    ]


def missing(sandbox: Sandbox) -> str | None:
    """The first path that is to be writable and is not there."""
    return next((path for path in sandbox.writable if not os.path.exists(path)), None)


def _walls(program: str) -> list[str]:
    """It dies with whoever watches it, whose group is not its own: a signal for it is sent to itself."""
    return [
        *(program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run"),
    ]


def _seen(sandbox: Sandbox) -> list[str]:
    """Where names are resolved, which may lie in a directory that it does not see."""
    real = os.path.realpath(RESOLVER)
    return [real] if sandbox.network and real.startswith("/run/") else []


def _devices(place: Place) -> list[str]:
    return [path for pattern in DEVICES for path in glob.glob(pattern)] if place.has_gpus else []


def _works(program: str, user: int | None) -> bool:
    try:
        done = subprocess.run(
            [*_walls(program), "--unshare-net", "--", "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
            cwd="/",
            user=user,
            group=user,
            extra_groups=None if user is None else (),
            preexec_fn=renounce,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
