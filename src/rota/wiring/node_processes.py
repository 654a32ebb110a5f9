"""Finds and ends the processes of nodes; as a program, once its standard input is closed. [I/O]

As a program it is the guard of a dev cluster: it outlives the cluster, however that ended, and imports no
more than the keeper does.
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

_STOP_SECONDS = 15.0  # for a keeper to stop its work first; the usual grace is ten seconds
_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.05


def main() -> int:
    # Ends when the parent's pipe closes, however the parent
    # dies: nodes of a dev cluster must not outlive it.
    sys.stdin.buffer.read()
    end_nodes([Path(argument) for argument in sys.argv[1:]])
    return 0


class FoundProcess(NamedTuple):
    """A process, identified by two of its arguments."""

    pid: int
    arguments: tuple[str, str]

    def send(self, signum: int) -> None:
        """Signal the process. Race: its pid may be reused, so it is checked again behind an open pidfd."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if _has(self.pid, self.arguments):
                    signal.pidfd_send_signal(handle, signum)
            finally:
                os.close(handle)


def agents_of(directory: Path) -> list[FoundProcess]:
    return _find("agent", directory)


def keepers_of(directory: Path) -> list[FoundProcess]:
    return _find("rota.keeper", directory)


def end_nodes(directories: list[Path]) -> None:
    """Kill agents, so that they start no keeper; stop keepers, and kill them after _STOP_SECONDS."""
    deadline = time.monotonic() + _STOP_SECONDS
    signalled: dict[FoundProcess, None] = {}
    while running := [
        process for directory in directories for process in _signal_to_end(directory, signalled)
    ]:
        if time.monotonic() > deadline:
            for process in running:
                process.send(signal.SIGKILL)
            for directory in directories:
                kill_work(directory)
        time.sleep(_POLL_SECONDS)


def kill_node(directory: Path) -> None:
    """Kill everything of a node at once, as a power failure would."""
    for process in (*agents_of(directory), *keepers_of(directory)):
        process.send(signal.SIGKILL)
    kill_work(directory)


def kill_work(directory: Path) -> None:
    marker = directory / "keeper.id"
    if marker.exists():
        trees.kill_all_marked(marker.read_text().strip(), _KILL_SECONDS)
    kill_leftover_cgroups(str(directory), _KILL_SECONDS)


def _signal_to_end(directory: Path, signalled: dict[FoundProcess, None]) -> list[FoundProcess]:
    """Signal the processes of one node, keepers once only; returns those that still run."""
    agents, keepers = agents_of(directory), keepers_of(directory)
    # Agents first: an agent would start another keeper in place of one that ended.
    for agent in agents:
        agent.send(signal.SIGKILL)
    for keeper in keepers:
        if keeper not in signalled:
            signalled[keeper] = None
            keeper.send(signal.SIGTERM)
            keeper.send(signal.SIGCONT)  # a frozen one would not handle the signal
    return [*agents, *keepers]


def _find(what: str, directory: Path) -> list[FoundProcess]:
    arguments = (what, str(directory))
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [FoundProcess(pid, arguments) for pid in pids if _has(pid, arguments)]


def _has(pid: int, arguments: tuple[str, str]) -> bool:
    try:
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # exited, or another user's
        return False
    return all(os.fsencode(argument) in command_line for argument in arguments)


if __name__ == "__main__":
    sys.exit(main())
