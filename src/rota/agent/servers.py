"""The servers of the cluster, of which one leads: tried in turn, remembered when others are told of. [I/O]"""

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

    def update(self, told: list[str]) -> None:
        """All there are, by the one that leads; those that were named here stay."""
        with contextlib.suppress(OSError):  # a full disk: they are known for as long as this agent lives
            write(self._file, told)
        self._addresses = list(dict.fromkeys((*self._addresses, *told)))

    def rotate(self) -> bool:
        """To the next one; whether each was tried in vain since the last that welcomed us."""
        self._addresses.append(self._addresses.pop(0))
        self._tried += 1
        return self._tried % len(self._addresses) == 0


def write(file: Path, addresses: list[str]) -> None:
    beside = file.with_name(f"{file.name}.new")
    beside.write_text("".join(f"{address}\n" for address in addresses))
    beside.replace(file)


def read(file: Path) -> tuple[str, ...]:
    return tuple(file.read_text().split())
