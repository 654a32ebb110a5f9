"""`rota top`: nodes and jobs, live on a terminal; elsewhere one table."""

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

from rota.cli.node_words import heard, share, state
from rota.cli.output import Column, Listing, colourful, emit, output_option, print_json
from rota.cli.session import with_cluster
from rota.cli.top_view import Snapshot, Typed, busiest_first, lines, press
from rota.cli.words import number, size
from rota.client.cluster import Cluster
from rota.client.errors import RotaError
from rota.client.server_views import Node

JOBS_SHOWN = 200
ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}


def _used(node: Node, name: str) -> str:
    used = (node.used or {}).get(name)
    show = size if name == "memory" else number
    return "-" if used is None else show(used)


TABLE: Listing[Node] = Listing(
    "nodes",
    [
        Column("NODE", lambda node: node.name),
        Column("STATE", state),
        Column("CPU", lambda node: share(node, "cpu"), right=True),
        Column("USED", lambda node: _used(node, "cpu"), right=True),
        Column("MEMORY", lambda node: share(node, "memory"), right=True),
        Column("USED", lambda node: _used(node, "memory"), right=True),
        Column("GPU", lambda node: share(node, "gpu"), right=True),
        Column("RUNNING", lambda node: node.running, right=True),
        Column("QUEUED", lambda node: node.queued, right=True),
        Column("HEARD", heard, right=True),
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
    help="How often to look.",
)
@output_option
@with_cluster()
def command(cluster: Cluster, every: float, output: str) -> None:
    """Watch nodes and jobs: what is asked for, used and there.

    On a terminal it is live; a bar is what is asked for, then what is used beyond it. Elsewhere: a table.
    """
    live = output == "table" and colourful(sys.stdout) and sys.stdin.isatty()
    if live:
        _watch(cluster, every)
        return
    now = look(cluster)
    if output == "json":
        print_json({"nodes": [node.raw for node in now.nodes], "jobs": [job.raw for job in now.jobs]})
    else:
        emit(output, TABLE, busiest_first(now.nodes))


def look(cluster: Cluster) -> Snapshot:
    return Snapshot(cluster.nodes(), list(cluster.jobs(JOBS_SHOWN, state="active")))


class Lookout:
    """Looks again and again in a thread, and wakes whoever draws: a slow server delays no key."""

    def __init__(self, cluster: Cluster, every_seconds: float) -> None:
        self.latest = look(cluster)
        self.news, self._bell = os.pipe()
        self._cluster = cluster
        self._every_seconds = every_seconds
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._every_seconds):
            before = self.latest
            try:
                self.latest = look(self._cluster)
            except RotaError as error:
                self.latest = Snapshot(before.nodes, before.jobs, str(error))
            os.write(self._bell, b".")


def _watch(cluster: Cluster, every_seconds: float) -> None:
    from rich.console import Console  # noqa: PLC0415  rich costs 130 ms: only who watches pays
    from rich.live import Live  # noqa: PLC0415  likewise

    console = Console()
    lookout, typed = Lookout(cluster, every_seconds), Typed()
    keyboard = sys.stdin.fileno()
    with _raw_keys(keyboard), Live(console=console, screen=True, auto_refresh=False) as screen:
        while not typed.over:
            screen.update(_drawn(lookout.latest, typed, console), refresh=True)
            ready, _, _ = select.select([keyboard, lookout.news], [], [])
            if lookout.news in ready:
                os.read(lookout.news, 4096)
            if keyboard in ready:
                for key in _keys(os.read(keyboard, 64)):
                    typed = press(typed, key)
    lookout.stop()


def _drawn(snapshot: Snapshot, typed: Typed, console: Any) -> Any:
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
    """Each key at once and unseen; afterwards as it was."""
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _keys(data: bytes) -> Iterator[str]:
    """Nothing read: the terminal is gone."""
    if not data:
        yield "q"
    elif data in ARROWS:
        yield ARROWS[data]
    elif data == b"\x1b":
        yield "escape"
    elif not data.startswith(b"\x1b"):
        yield from data.decode(errors="replace")
