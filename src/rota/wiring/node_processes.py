"""Ends whatever still runs of some nodes, frozen or not; as a program, once its standard input ends. [I/O]

It outlives the dev cluster that started it, however that ended, and needs no more than the keeper does.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rota.keeper.limits.detect import kill_leftover_cgroups
from rota.keeper.process import trees

_GOODBYE_SECONDS = 15.0  # a keeper stops its work first; the usual grace is ten seconds
_KILL_SECONDS = 5.0
_LOOK_SECONDS = 0.05


def main() -> int:
    sys.stdin.buffer.read()
    end_nodes([Path(word) for word in sys.argv[1:]])
    return 0


class FoundProcess(NamedTuple):
    """A process by the words it was started with."""

    pid: int
    words: tuple[str, str]

    def send(self, signum: int) -> None:
        """The handle is opened first: a pid reused since is never hit."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if _has(self.pid, self.words):
                    signal.pidfd_send_signal(handle, signum)
            finally:
                os.close(handle)


def agents_of(directory: Path) -> list[FoundProcess]:
    return _find("agent", directory)


def keepers_of(directory: Path) -> list[FoundProcess]:
    return _find("rota.keeper", directory)


def end_nodes(directories: list[Path]) -> None:
    """Agents at once, so that they start no keeper; keepers when their work has ended, or when time is up."""
    give_up_at = time.monotonic() + _GOODBYE_SECONDS
    told: dict[FoundProcess, None] = {}
    while left := [one for directory in directories for one in _tell_to_end(directory, told)]:
        if time.monotonic() > give_up_at:
            for one in left:
                one.send(signal.SIGKILL)
            for directory in directories:
                kill_work(directory)
        time.sleep(_LOOK_SECONDS)


def kill_node(directory: Path) -> None:
    """As if the machine had lost its power."""
    for one in (*agents_of(directory), *keepers_of(directory)):
        one.send(signal.SIGKILL)
    kill_work(directory)


def kill_work(directory: Path) -> None:
    mark = directory / "keeper.id"
    if mark.exists():
        trees.kill_all_marked(mark.read_text().strip(), _KILL_SECONDS)
    kill_leftover_cgroups(str(directory), _KILL_SECONDS)


def _tell_to_end(directory: Path, told: dict[FoundProcess, None]) -> list[FoundProcess]:
    agents, keepers = agents_of(directory), keepers_of(directory)
    for agent in agents:
        agent.send(signal.SIGKILL)
    for keeper in keepers:
        if keeper not in told:
            told[keeper] = None
            keeper.send(signal.SIGTERM)
            keeper.send(signal.SIGCONT)
    return [*agents, *keepers]


def _find(what: str, directory: Path) -> list[FoundProcess]:
    words = (what, str(directory))
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [FoundProcess(pid, words) for pid in pids if _has(pid, words)]


def _has(pid: int, words: tuple[str, str]) -> bool:
    try:
        said = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
    return all(os.fsencode(word) in said for word in words)


if __name__ == "__main__":
    sys.exit(main())
