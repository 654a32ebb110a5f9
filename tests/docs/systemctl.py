"""Stands in for systemd on a machine of a document: unit files are enabled, started and stopped. [I/O]"""

import configparser
import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from string import Template

HOME = Path("/srv/rota")


def main() -> None:
    verb, *units = [word for word in sys.argv[1:] if word != "--now"]
    for unit in units:
        name = Path(unit).name.removesuffix(".service")
        if verb in ("stop", "restart"):
            stop(name)
        if verb in ("enable", "start", "restart"):
            start(name)


def start(name: str) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
    unit.read_string((HOME / f"{name}.service").read_text())
    said = unit["Service"]
    given = dict(os.environ) | environment(said.get("EnvironmentFile", ""))
    line = shlex.split(Template(said["ExecStart"].replace("\\\n", " ")).substitute(given))
    with (HOME / f"{name}.log").open("ab") as diary:
        process = subprocess.Popen(
            line,
            env=given,
            cwd=said["WorkingDirectory"],
            stdin=subprocess.DEVNULL,
            stdout=diary,
            stderr=diary,
            start_new_session=True,
        )
    (HOME / f"{name}.pid").write_text(str(process.pid))


def environment(files: str) -> dict[str, str]:
    """A file that may be missing has a dash before its name."""
    found = [Path(name.lstrip("-")) for name in files.split()]
    lines = [line for file in found if file.exists() for line in file.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines)


def stop(name: str) -> None:
    """One that has ended by itself, as a member of etcd that was removed, is stopped already."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(int((HOME / f"{name}.pid").read_text()))
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        select.select([handle], [], [])


if __name__ == "__main__":
    main()
