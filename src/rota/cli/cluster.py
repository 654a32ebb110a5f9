"""`rota cluster`: list, create, resize and drain clusters, and explain why they grew or shrank."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from rota.cli.event import EVENTS
from rota.cli.ui.arguments import pairs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_duration, format_number, format_size
from rota.cli.ui.output import (
    TableColumn,
    TableListing,
    emit,
    emit_one,
    output_option,
    print_data,
    print_note,
    tint,
)
from rota.client.cluster import Cluster
from rota.client.clusters import ClusterStatus

SIZES = ("memory", "disk")


def _nodes(status: ClusterStatus) -> str:
    """Nodes that accept tasks, of all nodes."""
    return f"{status.open_nodes}/{status.nodes}"


def _limits(status: ClusterStatus) -> str:
    if not status.makes_nodes:
        return "by hand"
    return (
        f"{status.min_nodes}-{status.max_nodes}" if status.nodes_wanted is None else str(status.nodes_wanted)
    )


CLUSTERS: TableListing[ClusterStatus] = TableListing(
    "clusters",
    [
        TableColumn("CLUSTER", lambda status: status.name),
        TableColumn("STATE", lambda status: status.state),
        TableColumn("TYPE", lambda status: status.type),
        TableColumn("REGION", lambda status: status.region or "-"),
        TableColumn("PROVIDER", lambda status: status.provider),
        TableColumn("NODES", _nodes, right=True),
        TableColumn("LIMITS", _limits, right=True),
        TableColumn("RUNNING", lambda status: status.running, right=True),
        TableColumn("WAITING", lambda status: status.waiting, right=True),
    ],
    lambda status: status.name,
)


@click.group("cluster")
def command() -> None:
    """List, create and resize clusters, and explain why they grew."""


@command.command("ls")
@output_option
@with_cluster()
def list_clusters(cluster: Cluster, output: str) -> None:
    """List clusters: their nodes, and how many tasks run and wait there."""
    emit(output, CLUSTERS, cluster.clusters.list())


@command.command("show")
@click.argument("name")
@output_option
@with_cluster()
def show(cluster: Cluster, name: str, output: str) -> None:
    """Show a cluster and the machines requested from its provider."""
    found = cluster.clusters.get(name)
    emit_one(output, found, found.name, lambda: _lines(found))


@command.command("create")
@click.argument("name")
@click.option("--type", "kind", help="The kind of its nodes: their label cluster_type.")
@click.option("--region", help="The region of its nodes: their label region.")
@click.option("--label", multiple=True, metavar="K=V", help="A label of all its nodes; repeatable.")
@click.option("--provider", help="What creates its nodes: local or command. [default: they join by hand]")
@click.option(
    "--setting",
    multiple=True,
    metavar="K=V",
    help="A setting of the provider, as create=./create.sh; repeatable.",
)
@click.option(
    "--node",
    "capacity",
    multiple=True,
    metavar="K=V",
    help="Capacity of a machine: cpu=4, memory=8g; repeatable.",
)
@click.option("--min", "min_nodes", type=int, metavar="N", help="Minimum number of nodes. [default: 0]")
@click.option("--max", "max_nodes", type=int, metavar="N", help="Maximum number of nodes.")
@click.option(
    "--idle", metavar="DURATION", help="How long a node is empty before it is removed. [default: 60s]"
)
@click.option("--join", metavar="DURATION", help="How long a machine may take to join. [default: 2m]")
@click.option(
    "--pause", metavar="DURATION", help="Backoff after the first failure of its provider. [default: 5s]"
)
@click.option("--clusters", metavar="A-B", help="How many clusters like it, itself included, by demand.")
@click.option(
    "--wait", metavar="DURATION", help="Waiting time in its queue before another is created. [default: 60s]"
)
@click.option(
    "--fail-after",
    metavar="DURATION",
    help="Time after the loss of all nodes, or never; only if they join by hand. [default: 60s]",
)
@output_option
@with_cluster(WORKING_SECONDS)
def create(cluster: Cluster, name: str, kind: str | None, output: str, **options: Any) -> None:
    """Create a cluster; nodes join by hand (rota node token --cluster NAME), or a provider creates them."""
    tables = {
        "labels": pairs(options.pop("label"), "--label"),
        "settings": pairs(options.pop("setting"), "--setting"),
        "capacity": pairs(options.pop("capacity"), "--node"),
    }
    made = cluster.clusters.create(name, **{"type": kind, **_sizes(options), **_given(tables)})
    emit_one(output, made, made.name, lambda: [_sentence(made)])
    if not made.makes_nodes and output in ("table", "wide"):
        print_note(f"let nodes join it: rota node token --cluster {clean(made.name)}")


@command.command("resize")
@click.argument("name")
@click.option("--nodes", metavar="N", help="A fixed number of nodes; auto: as many as the tasks need.")
@click.option("--min", "min_nodes", type=int, metavar="N", help="Minimum number of nodes.")
@click.option("--max", "max_nodes", type=int, metavar="N", help="Maximum number of nodes.")
@click.option("--idle", metavar="DURATION", help="How long a node is empty before it is removed.")
@click.option("--join", metavar="DURATION", help="How long a machine may take to join.")
@click.option(
    "--pause", metavar="DURATION", help="Backoff after the first failure of its provider; doubled each time."
)
@click.option("--clusters", metavar="A-B", help="How many clusters like it, itself included, by demand.")
@click.option("--wait", metavar="DURATION", help="Waiting time in its queue before another is created.")
@click.option(
    "--fail-after",
    metavar="DURATION",
    help="Time after the loss of all nodes, or never; only if they join by hand.",
)
@output_option
@with_cluster(WORKING_SECONDS)
def resize(cluster: Cluster, name: str, output: str, **options: Any) -> None:
    """Change the number or limits of nodes of a cluster, or when it fails; no node with tasks is removed."""
    if not _given(options):
        raise click.UsageError("nothing to change; write --nodes 3, or --min 0 --max 8")
    changed = cluster.clusters.change(name, **_sizes(options))
    emit_one(output, changed, changed.name, lambda: [_sentence(changed)])


@command.command("drain")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it accept jobs again.")
@output_option
@with_cluster(WORKING_SECONDS)
def drain(cluster: Cluster, name: str, undo: bool, output: str) -> None:
    """Assign no new jobs to a cluster: running tasks go on, jobs that have not started move to others."""
    changed = cluster.clusters.change(name, drain=not undo)
    emit_one(output, changed, changed.name, lambda: [_sentence(changed)])


@command.command("delete")
@click.argument("names", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, names: Sequence[str]) -> None:
    """Drain clusters, and delete each when it is empty."""
    for name in names:
        cluster.clusters.delete(name)
        print_note(f"cluster {clean(name)} drains; it is deleted when it has no job, node or machine left")


@command.command("why")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
@output_option
@with_cluster()
def why(cluster: Cluster, name: str, limit: int, output: str) -> None:
    """Explain why a cluster grew, shrank or changed during the last day."""
    found = cluster.clusters.get(name)
    events = cluster.events(limit, cluster=found.name)
    if output in ("json", "jsonl", "id"):
        emit(output, EVENTS, events)
        return
    print_data(_sentence(found))
    for event in events:
        at = datetime.fromtimestamp((event.at_ms or 0) / 1000).astimezone()
        print_data(f"  {at:%H:%M:%S}  {clean(event.why)}")


def _sizes(options: dict[str, Any]) -> dict[str, Any]:
    clusters = options.pop("clusters")
    if clusters is None:
        return _given(options)
    least, dash, most = str(clusters).partition("-")
    if not (dash and least.isdecimal() and most.isdecimal()):
        raise click.BadParameter(
            f"{clean(clusters)!r} is not a range; write it as 1-3", param_hint="--clusters"
        )
    return {**_given(options), "min_clusters": int(least), "max_clusters": int(most)}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, {})}


def _sentence(status: ClusterStatus) -> str:
    limits = f"{_limits(status)} nodes of {status.provider}" if status.makes_nodes else "nodes join by hand"
    return clean(
        f"cluster {status.name}: {status.state}, {status.open_nodes} of {status.nodes} nodes take tasks, "
        f"{limits}, "
        f"{status.running} tasks run, {status.waiting} wait"
    )


def _lines(status: ClusterStatus) -> Iterator[str]:
    yield f"cluster   {clean(status.name)}"
    yield f"state     {tint(status.state)}" + (f": {clean(status.reason)}" if status.reason else "")
    labels = {
        "cluster_type": status.type,
        **({"region": status.region} if status.region else {}),
        **status.labels,
    }
    yield "labels    " + clean(", ".join(f"{key}={value}" for key, value in labels.items()))
    yield f"nodes     {status.open_nodes} of {status.nodes} take tasks; {_limits(status)}"
    yield f"tasks     {status.running} run, {status.waiting} wait"
    if not status.makes_nodes:
        after = status.fail_after_seconds
        yield "fails     " + (
            "never" if after is None else f"{format_duration(after)} after its last node is lost"
        )
        return
    amounts = {
        key: format_size(value) if key in SIZES else format_number(value)
        for key, value in status.capacity.items()
    }
    has = ", ".join(f"{key} {amount}" for key, amount in amounts.items())
    yield f"provider  {clean(status.provider)}; a machine has {clean(has)}"
    if status.like is not None:
        yield f"like      {clean(status.like)}: created and removed by demand there"
    elif status.max_clusters > 1:
        waits = f"another when the head of the queue waits for {format_duration(status.wait_seconds)}"
        yield f"clusters  {status.min_clusters}-{status.max_clusters} like it; {waits}"
    yield f"idle      a node that is empty for {format_duration(status.idle_seconds)} is removed"
    for machine in status.machines:
        reason = f": {machine['reason']}" if machine.get("reason") else ""
        yield clean(f"machine   {machine['name']}  {machine['state']}{reason}")
    yield f"next      rota cluster why {clean(status.name)}"
