"""The addresses of the cluster's servers: tried in rotation, stored when the leader sends new ones. [I/O]"""

import contextlib
from pathlib import Path

FILE = "server"


class ServerList:
    def __init__(self, directory: Path, addresses: tuple[str, ...]) -> None:
        self._file = directory / FILE
        self._addresses = list(addresses)
        self._tried = 0

    @property
    def current(self) -> str:
        return self._addresses[0]

    @property
    def is_one(self) -> bool:
        return len(self._addresses) == 1

    def mark_reached(self) -> None:
        self._tried = 0

    def update(self, addresses: list[str]) -> None:
        """Add the addresses that the leader sent; configured ones stay."""
        # Stored first: after a crash the agent must find a
        # server that exists now, not the one it joined by.
        with contextlib.suppress(OSError):  # a full disk: they are remembered until this agent ends
            write(self._file, addresses)
        self._addresses = list(dict.fromkeys((*self._addresses, *addresses)))

    def rotate(self) -> bool:
        """Advance to the next server; True if all were tried without success since the last welcome."""
        self._addresses.append(self._addresses.pop(0))
        self._tried += 1
        return self._tried % len(self._addresses) == 0


def write(file: Path, addresses: list[str]) -> None:
    partial = file.with_name(f"{file.name}.new")
    partial.write_text("".join(f"{address}\n" for address in addresses))
    partial.replace(file)


def read(file: Path) -> tuple[str, ...]:
    return tuple(file.read_text().split())
