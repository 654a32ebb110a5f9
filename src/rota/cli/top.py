"""`rota top`: nodes and jobs, live on a terminal, otherwise as one table."""

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from rota.cli.ui.connection import with_cluster
from rota.cli.ui.formats import format_number, format_size
from rota.cli.ui.node_format import last_seen, share, state
from rota.cli.ui.output import TableColumn, TableListing, colourful, emit, output_option, print_json
from rota.cli.ui.top_view import TopSnapshot, Typed, busiest_first, lines, press
from rota.client.cluster import Cluster
from rota.client.errors import RotaError
from rota.client.server_views import Node

JOBS_SHOWN = 200
ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}


def _used(node: Node, name: str) -> str:
    used = (node.used or {}).get(name)
    show = format_size if name == "memory" else format_number
    return "-" if used is None else show(used)


TABLE: TableListing[Node] = TableListing(
    "nodes",
    [
        TableColumn("NODE", lambda node: node.name),
        TableColumn("STATE", state),
        TableColumn("CPU", lambda node: share(node, "cpu"), right=True),
        TableColumn("USED", lambda node: _used(node, "cpu"), right=True),
        TableColumn("MEMORY", lambda node: share(node, "memory"), right=True),
        TableColumn("USED", lambda node: _used(node, "memory"), right=True),
        TableColumn("GPU", lambda node: share(node, "gpu"), right=True),
        TableColumn("RUNNING", lambda node: node.running, right=True),
        TableColumn("QUEUED", lambda node: node.queued, right=True),
        TableColumn("HEARD", last_seen, right=True),
    ],
    lambda node: node.id,
)


@click.command("top")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval.",
)
@output_option
@with_cluster()
def command(cluster: Cluster, every: float, output: str) -> None:
    """Watch nodes and jobs: requested, used and available resources.

    On a terminal the view is live; a bar shows what is requested, then what is used beyond it.
    """
    live = output == "table" and colourful(sys.stdout) and sys.stdin.isatty()
    if live:
        _watch(cluster, every)
        return
    now = snapshot(cluster)
    if output == "json":
        print_json({"nodes": [node.raw for node in now.nodes], "jobs": [job.raw for job in now.jobs]})
    else:
        emit(output, TABLE, busiest_first(now.nodes))


def snapshot(cluster: Cluster) -> TopSnapshot:
    return TopSnapshot(cluster.nodes.list(), list(cluster.jobs(JOBS_SHOWN, state="active")))


class SnapshotPoller:
    """Polls the server in a thread and wakes the screen loop: a slow server must not delay the keyboard."""

    def __init__(self, cluster: Cluster, every_seconds: float) -> None:
        self.latest = snapshot(cluster)
        self.changed, self._wakeup = os.pipe()
        self._cluster = cluster
        self._every_seconds = every_seconds
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            before = self.latest
            try:
                self.latest = snapshot(self._cluster)
            except RotaError as error:
                # The last known state stays on the screen beside the error: a restart of
                # the server must not blank it.
                self.latest = TopSnapshot(before.nodes, before.jobs, str(error))
            # A pipe, because the screen loop waits in select for the keyboard as well.
            os.write(self._wakeup, b".")


def _watch(cluster: Cluster, every_seconds: float) -> None:
    from rich.console import Console  # noqa: PLC0415  importing rich takes 130 ms
    from rich.live import Live  # noqa: PLC0415  likewise

    console = Console()
    poller, typed = SnapshotPoller(cluster, every_seconds), Typed()
    keyboard = sys.stdin.fileno()
    with _raw_keys(keyboard), Live(console=console, screen=True, auto_refresh=False) as screen:
        while not typed.over:
            screen.update(_drawn(poller.latest, typed, console), refresh=True)
            ready, _, _ = select.select([keyboard, poller.changed], [], [])
            if poller.changed in ready:
                os.read(poller.changed, 4096)
            if keyboard in ready:
                for key in _keys(os.read(keyboard, 64)):
                    typed = press(typed, key)
    poller.stop()


def _drawn(snapshot: TopSnapshot, typed: Typed, console: Any) -> Any:
    from rich.text import Text  # noqa: PLC0415  as above

    width, height = console.size
    text = Text(no_wrap=True, overflow="crop", end="")
    shown = lines(snapshot, typed, width, height)[:height]
    for at, line in enumerate(shown):
        for piece in line:
            text.append(piece.text, piece.style)
        if at < len(shown) - 1:
            text.append("\n")
    return text


@contextmanager
def _raw_keys(keyboard: int) -> Iterator[None]:
    """Read single keys without echo; the terminal settings are restored afterwards."""
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield
    finally:
        # Also after an exception: otherwise the shell would be left without echo.
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _keys(data: bytes) -> Iterator[str]:
    """The keys in what was read; an empty read means that the terminal was closed."""
    if not data:
        yield "q"
    elif data in ARROWS:
        yield ARROWS[data]
    elif data == b"\x1b":
        yield "escape"
    elif not data.startswith(b"\x1b"):
        yield from data.decode(errors="replace")
