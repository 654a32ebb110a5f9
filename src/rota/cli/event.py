"""`rota event`: list past events and watch new ones."""

from datetime import datetime

import click

from rota.cli.ui.connection import with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import TableColumn, TableListing, emit, output_option, print_data, print_line
from rota.client.cluster import Cluster
from rota.client.views import Event


def _clock(event: Event) -> str:
    if event.at_ms is None:
        return "-"
    return datetime.fromtimestamp(event.at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _indices(event: Event) -> str:
    pairs = event.indices or ()
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


EVENTS: TableListing[Event] = TableListing(
    "events",
    [
        TableColumn("TIME", _clock),
        TableColumn("SEQ", lambda event: event.seq, wide=True),
        TableColumn("KIND", lambda event: event.kind),
        TableColumn("JOB", lambda event: event.job or "-"),
        TableColumn("TASKS", lambda event: _indices(event) or "-"),
        TableColumn("NODE", lambda event: event.node or "-"),
        TableColumn("WHY", lambda event: event.why),
    ],
    lambda event: event.seq,
)


@click.group("event")
def command() -> None:
    """List and watch events."""


@command.command("ls")
@click.option("--job", help="Events of this job only.")
@click.option("--node", help="Events of this node only.")
@click.option("--kind", help="Events of this kind only, as task.ended.")
@click.option("--since", metavar="SEQ", help="After this event.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many.")
@output_option
@with_cluster()
def list_events(cluster: Cluster, limit: int, output: str, **query: str | None) -> None:
    """List past events, oldest first."""
    emit(output, EVENTS, cluster.events(limit, **query))


@command.command("watch")
@click.option("--job", help="Events of this job only.")
@click.option("--node", help="Events of this node only.")
@click.option("--kind", help="Events of this kind only, as task.ended.")
@click.option("--since", metavar="SEQ", help="After this event. [default: from now on]")
@output_option
@with_cluster()
def watch(cluster: Cluster, since: str | None, output: str, **query: str | None) -> None:
    """Print events as they happen, until Ctrl-C; with -o json or jsonl one record per line."""
    for event in cluster.watch(since, **query):
        if output in ("json", "jsonl"):
            print_line(event.raw)
        elif output == "id":
            print_data(event.seq)
        else:
            about = [event.job and f"job {event.job}", _indices(event), event.node and f"node {event.node}"]
            parts = [_clock(event), event.kind, *(part for part in about if part), event.why]
            print_data(clean("  ".join(parts)))
