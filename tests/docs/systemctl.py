"""Replaces systemd on a machine of a document: enables, starts and stops unit files. [I/O]"""

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
    service = unit["Service"]
    given = dict(os.environ) | environment(service.get("EnvironmentFile", ""))
    line = shlex.split(Template(service["ExecStart"].replace("\\\n", " ")).substitute(given))
    with (HOME / f"{name}.log").open("ab") as diary:
        process = subprocess.Popen(
            line,
            env=given,
            cwd=service["WorkingDirectory"],
            stdin=subprocess.DEVNULL,
            stdout=diary,
            stderr=diary,
            start_new_session=True,
        )
    (HOME / f"{name}.pid").write_text(str(process.pid))


def environment(files: str) -> dict[str, str]:
    """The environment of a unit; a dash before a file name means that it may be missing."""
    found = [Path(name.lstrip("-")) for name in files.split()]
    lines = [line for file in found if file.exists() for line in file.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines)


def stop(name: str) -> None:
    """Stop a unit; one that has exited by itself, such as a removed member of etcd, is already stopped."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(int((HOME / f"{name}.pid").read_text()))
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        select.select([handle], [], [])


if __name__ == "__main__":
    main()
