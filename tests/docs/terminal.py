"""The terminal of a reader: a directory, the command `rota`, and background processes. [I/O]"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rota.testing.processes import kill_all, until, with_argument
from tests.docs.snippets import Block, Command, Kind, commands, matches

ANSWER_SECONDS = 120.0
STAYING = (
    *("etcd ", "rota dev", "rota server", "rota agent", "rota event watch"),
    *('eval "$(rota node token', 'eval "$(rota watcher token'),
)
ENDING = ("rota server status",)
# Free ports and a place of its own, where a reader would take the usual ones.
ROTA = """#!/bin/sh
case "$1" in
dev) shift; exec {python} -m rota.cli.main dev --port 0 --data-dir "$HOME/dev" "$@" ;;
*) exec {python} -m rota.cli.main "$@" ;;
esac
"""


class Terminal:
    """Runs the commands of a document; no process is left behind."""

    def __init__(self, directory: Path, config: Path | None = None, inside: Sequence[str] = ()) -> None:
        self.directory = directory
        self._inside = inside  # what each command is run by
        self.home = directory / "home"
        self.environment = {
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "ROTA_CONFIG": str(config or self.home / "config.toml"),
            "ROTA_NAMESPACE": directory.name,  # a document lists the jobs of its own
            "ROTA_DATA_DIR": str(self.home / "data"),
            "ROTA_RUN_AS": "self",  # other users cannot reach the directories of a test
            "ROTA_HTTP_SERVER_ADDR": "127.0.0.1:0",
            "ROTA_GRPC_SERVER_ADDR": "127.0.0.1:0",
            "ROTA_AGENT_SERVER_ADDR": "127.0.0.1:0",
        }
        self._staying: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True)
        command = self.directory / "bin" / "rota"
        command.parent.mkdir()
        command.write_text(ROTA.format(python=sys.executable))
        command.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        """As a reader would end them, with Ctrl-C; what is left then is killed, and a fault."""
        try:
            for process in reversed(self._staying):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
                process.wait(ANSWER_SECONDS)
            until(lambda: not with_argument(f"{self.directory}/"), "everything has ended")
        finally:
            kill_all(lambda: with_argument(f"{self.directory}/"))

    def type(self, block: Block) -> None:
        """Run one block; AssertionError where it does not do what it shows."""
        if block.file is not None:
            (self.home / block.file).write_text(block.text)
        elif not block.runs:
            return
        elif block.language == Kind.CONSOLE:
            self._type_commands(block)
        else:
            line = ["bash", "-e"] if block.language == Kind.SH else [sys.executable, "-"]
            self._check(block.line, self.run(line, block.text), block.exit_code)

    def run(self, line: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        """To its end, both streams together, as a terminal shows them."""
        return subprocess.run(
            [*self._inside, *line],
            input=text,
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )

    def _type_commands(self, block: Block) -> None:
        *earlier, last = commands(block)
        for command in (*earlier, last):
            if command.text.startswith(STAYING) and not command.text.startswith(ENDING):
                self._start(command)
                continue
            ended = self.run(["bash", "-c", command.text])
            self._check(command.line, ended, block.exit_code if command is last else 0)
            message = (
                f"line {command.line}: {command.text}\nshown:\n{command.shown}\nprinted:\n{ended.stdout}"
            )
            assert not command.shown or matches(command.shown, ended.stdout), message

    def _start(self, command: Command) -> None:
        """It stays until the document ends; what it says at first is compared."""
        line, diary = command.text, self.directory / f"line-{command.line}.log"
        with diary.open("wb") as output:
            process = subprocess.Popen(
                [*self._inside, "bash", "-c", f"exec {line}" if line.startswith(("rota", "etcd")) else line],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._staying.append(process)
        message = f"line {command.line}: {command.text} prints\n{command.shown}\nand not\n"
        try:
            until(lambda: matches(command.shown, diary.read_text()), command.text, ANSWER_SECONDS)
        except TimeoutError:
            raise AssertionError(message + diary.read_text()) from None

    def _check(self, line: int, ended: subprocess.CompletedProcess[str], exit_code: int) -> None:
        message = f"line {line}: ended with {ended.returncode}, not {exit_code}:\n{ended.stdout}"
        assert ended.returncode == exit_code, message
