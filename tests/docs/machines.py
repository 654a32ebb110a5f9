"""The machines of a document, on one: each with its own network, processes and /srv/rota, all tied. [I/O]"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from rota.testing.processes import until
from tests.docs.snippets import Block, Kind, commands, matches

PRODUCTION = Path(__file__).parents[2] / "docs" / "howto" / "production.md"
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3", "d": "10.0.0.4"}  # of its machines
ANSWER_SECONDS = 120.0
STAND_INS = Path(__file__).parent / "stand_ins"  # for what only a machine of its own has
HOME = "/srv/rota"
_NOWHERE = "02:00:00:00:00:99"
# The first process of a machine: it buries those whose parents are gone, and its end is the machine's.
_HOLD = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""
# They have the files of this one, but for their own home, and no control groups, which they would share.
_SET_UP = f"""
mount --make-rprivate /
mount -t tmpfs none /srv && mkdir {HOME} && mount --bind "$1" {HOME}
mount -t tmpfs none /sys/fs/cgroup
ip link set lo up
ip address add "$2/24" dev e0 && ip link set e0 up
"""


class Machines:
    """The machines by name, each with its address; no process is left behind."""

    def __init__(self, directory: Path, addresses: dict[str, str], **settings: str) -> None:
        self._directory = directory
        self._settings = settings  # for whatever runs on them
        self._addresses = addresses
        self._closing = contextlib.ExitStack()
        self._pids: dict[str, int] = {}
        self._own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self._same_user = ["--user", "--preserve-credentials"] if self._own_user else []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as closing:
            hub = closing.enter_context(_held(["unshare", *self._own_user, "--net", "--mount"]))
            inside = ["nsenter", "--target", str(hub.pid), *self._same_user, "--net", "--mount"]
            _run([*inside, "sh", "-ec", "ip link add hub type bridge && ip link set hub up"])
            for number, name in enumerate(self._addresses, 1):
                self._directory.joinpath(name).mkdir(parents=True)
                apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
                holder = closing.enter_context(_held([*inside, *apart]))
                self._pids[name] = _only_child(holder.pid)
                self._tie(inside, number, name)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def type(self, block: Block) -> None:
        """Run one block, each command where its prompt says; AssertionError where it does not as is shown."""
        if block.file is not None:
            name, _, where = block.file.partition(" on ")
            for machine in where.split():
                file = self._directory / machine / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
        elif block.runs:
            assert block.language == Kind.CONSOLE, f"line {block.line}: it does not say where"
            for command in commands(block):
                ended = self.run(command.machine, command.text)
                message = f"line {command.line}: {command.machine}$ {command.text}\nprinted:\n{ended.stdout}"
                assert ended.returncode == 0, f"{message}\nended with {ended.returncode}"
                assert not command.shown or matches(command.shown, ended.stdout), message

    def run(self, machine: str, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._inside(machine), "env", "-C", HOME, "bash", "-c", line],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )

    def cut(self, machine: str, *others: str) -> None:
        """What it sends to these goes nowhere, and nobody is told."""
        for other in others:
            entry = f"{self._addresses[other]} lladdr {_NOWHERE} dev e0 nud permanent"
            _run([*self._inside(machine), "ip", "neigh", "replace", *entry.split()])

    def heal(self, machine: str, *others: str) -> None:
        for other in others:
            _run([*self._inside(machine), "ip", "neigh", "del", self._addresses[other], "dev", "e0"])

    def _tie(self, hub: Sequence[str], number: int, name: str) -> None:
        cable, pid = f"v{number}", str(self._pids[name])
        _run([*hub, "ip", "link", "add", cable, "type", "veth", "peer", "name", "e0", "netns", pid])
        _run([*hub, "ip", "link", "set", cable, "master", "hub", "up"])
        given = ["sh", str(self._directory / name), self._addresses[name]]
        _run([*self._inside(name), "sh", "-ec", _SET_UP, *given])

    def _inside(self, machine: str) -> list[str]:
        target = str(self._pids[machine])
        return ["nsenter", "--target", target, *self._same_user, "--net", "--mount", "--pid"]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{STAND_INS}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": HOME,
            "LANG": "C.UTF-8",
            "MACHINES": str(self._directory),
            "ROTA_CONTAINER": "none",
            "ROTA_RUN_AS": "self",  # who is not root here is nobody else there
            **self._settings,
        }


@contextlib.contextmanager
def _held(apart: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Create namespaces; they exist as long as their first process."""
    assert shutil.which("ip"), "machines are tied by the command ip"
    with subprocess.Popen([*apart, sys.executable, "-c", _HOLD], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n", "no network of its own can be had"
            yield holder
        finally:
            holder.kill()


def _only_child(pid: int) -> int:
    """The child of a process: nsenter and unshare exec their command, or wait for it."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return int(until(lambda: children.read_text().split(), "the machine is there")[0])


def _run(line: list[str]) -> None:
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{line}: {ended.stderr}"
