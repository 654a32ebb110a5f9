"""Demonstrates Rota: a cluster of three nodes on this machine, some jobs, a failure, a killed agent.

`make demo` runs it. It takes less than a minute, uses a temporary directory and leaves nothing behind.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROTA = [sys.executable, "-m", "rota.cli.main"]
ENDING = (signal.SIGINT, signal.SIGTERM)
READY_SECONDS = 60.0
STOP_SECONDS = 15.0
UNLUCKY = 'test "$ROTA_INDEX" -ne 7 || { echo "7 is not my number" >&2; exit 3; }'


def main() -> int:
    for ending in ENDING:
        signal.signal(ending, signal.default_int_handler)  # even if the parent process ignores them
    try:
        with tempfile.TemporaryDirectory(prefix="rota-demo-") as directory:
            show(Demo(Path(directory)))
    except KeyboardInterrupt:
        say("interrupted; everything is stopped and removed")
        return 130
    return 0


def show(demo: "Demo") -> None:
    chapter("A control plane and three nodes, all on this machine.")
    with demo.cluster():
        chapter("One job. `rota run` passes its output through and returns its exit code.")
        demo.rota("run", "--", "echo", "hello")
        chapter("An array of 300 tasks, a quarter of a core each; they run in this directory.")
        demo.rota("run", "--name", "collatz", "--cpu", "0.25", "--array", "0-299", "--", "sh", "collatz.sh")
        demo.rota("logs", "last.299")
        chapter("Ten tasks; one of them fails.")
        demo.rota("run", "--name", "unlucky", "--array", "0-9", "--", "sh", "-c", UNLUCKY, exit_code=3)
        demo.rota("show", "last.7")
        chapter("A job that cannot run here, and what would help.")
        demo.rota("run", "--detach", "--memory", "16t", "--", "sort", "everything")
        demo.rota("why", "last")
        demo.rota("cancel", "last")
        chapter(
            "The agent of node-2 is killed while its node runs tasks. They keep running under its keeper."
        )
        demo.rota("run", "--detach", "--name", "steady", "--array", "0-5", "--", "sleep", "4")
        demo.await_running(6)
        demo.kill_agent("node-2")
        demo.rota("node", "ls")
        with demo.agent("node-2"):
            demo.rota("wait", "last")
            demo.rota("show", "last")
            chapter("All jobs, and the nodes they ran on.")
            demo.rota("ls")
            demo.rota("node", "ls")
    chapter("The demo is over; the cluster is stopped and its files are removed. More: README.md")


class Demo:
    """A cluster in a directory of its own, and the commands given to it."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        self._env = {**own, "ROTA_CONFIG": str(directory / "config.toml")}
        self._server = 0

    def rota(self, *arguments: str, exit_code: int = 0) -> None:
        """Run one command as a user would, with the output of the demo as its output."""
        say(f"$ {shlex.join(['rota', *arguments])}")
        ended = subprocess.run([*ROTA, *arguments], env=self._env, cwd=HERE, check=False)
        if ended.returncode != exit_code:
            raise SystemExit(f"error: exit code {ended.returncode}, expected {exit_code}")
        say(f"(exit code {exit_code})\n" if exit_code else "")

    @contextlib.contextmanager
    def cluster(self) -> Iterator[None]:
        say("$ rota dev --nodes 3")
        options = ["--nodes", "3", "--port", "0", "--data-dir", str(self._data)]
        try:
            with self._running("dev", *options, stderr=subprocess.PIPE) as server:
                self._server = server.pid
                self._await_ready(server)
                yield
        finally:
            with undisturbed():
                self._end_what_is_left()

    @contextlib.contextmanager
    def agent(self, name: str) -> Iterator[None]:
        """Restart the agent of an existing node within the block."""
        say(f"$ rota agent --name {name} &\n")
        options = ["--name", name, "--data-dir", str(self._data / name)]
        with self._running("agent", *options, stderr=subprocess.DEVNULL):
            yield

    def await_running(self, count: int) -> None:
        """Wait until this number of tasks of the last job run, at most STOP_SECONDS."""
        deadline = time.monotonic() + STOP_SECONDS
        running = 0
        while running < count and time.monotonic() < deadline:
            shown = subprocess.check_output([*ROTA, "show", "last", "-o", "json"], env=self._env)
            running = json.loads(shown)["counts"].get("running", 0)

    def kill_agent(self, name: str) -> None:
        for child in psutil.Process(self._server).children():
            if child.cmdline()[-2:] == ["--name", name]:
                say(f"$ kill -9 {child.pid}\n")
                child.kill()
                child.wait()

    @contextlib.contextmanager
    def _running(self, *arguments: str, stderr: int) -> Iterator[subprocess.Popen[str]]:
        """A Rota process in its own session, so that Ctrl-C reaches only the demo, which then stops it."""
        process = subprocess.Popen(
            [*ROTA, *arguments], env=self._env, stderr=stderr, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            with undisturbed():
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)

    def _await_ready(self, server: subprocess.Popen[str]) -> None:
        """Print the output of the server up to its line "next:", which says that it is ready."""
        too_late = threading.Timer(READY_SECONDS, server.kill)
        too_late.start()
        assert server.stderr is not None, "it is a pipe"
        said = ""
        try:
            for said in server.stderr:
                say(said.rstrip())
                if "next:" in said:
                    break
        finally:
            too_late.cancel()
        if "next:" not in said:
            raise SystemExit("error: the cluster did not start")
        say("")

    def _end_what_is_left(self) -> None:
        """Terminate keepers whose agent was dead at an interrupt; each stops its tasks before it exits."""
        left = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(left, STOP_SECONDS)[1]:
            process.kill()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return any(word.startswith(str(self._data)) for word in process.cmdline())
        except psutil.Error:
            return False


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C until the cleanup is done."""
    before = {one: signal.signal(one, signal.SIG_IGN) for one in ENDING}
    try:
        yield
    finally:
        for one, reaction in before.items():
            signal.signal(one, reaction)


def chapter(text: str) -> None:
    in_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    bold, plain = ("\033[1m", "\033[0m") if in_colour else ("", "")
    say(f"{bold}# {text}{plain}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
