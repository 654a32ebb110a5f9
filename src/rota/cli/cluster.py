"""`rota cluster`: groups of nodes, how each stands, how large it may be, and why it grew or shrank."""

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


def _nodes(one: ClusterStatus) -> str:
    """Those that take work, of those there are."""
    return f"{one.open_nodes}/{one.nodes}"


def _limits(one: ClusterStatus) -> str:
    if not one.makes_nodes:
        return "by hand"
    return f"{one.min_nodes}-{one.max_nodes}" if one.nodes_wanted is None else str(one.nodes_wanted)


CLUSTERS: TableListing[ClusterStatus] = TableListing(
    "clusters",
    [
        TableColumn("CLUSTER", lambda one: one.name),
        TableColumn("STATE", lambda one: one.state),
        TableColumn("TYPE", lambda one: one.type),
        TableColumn("REGION", lambda one: one.region or "-"),
        TableColumn("PROVIDER", lambda one: one.provider),
        TableColumn("NODES", _nodes, right=True),
        TableColumn("LIMITS", _limits, right=True),
        TableColumn("RUNNING", lambda one: one.running, right=True),
        TableColumn("WAITING", lambda one: one.waiting, right=True),
    ],
    lambda one: one.name,
)


@click.group("cluster")
def command() -> None:
    """List clusters, create and resize them, and say why they grew."""


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
    """Show a cluster and the machines that its provider was asked for."""
    found = cluster.clusters.get(name)
    emit_one(output, found, found.name, lambda: _lines(found))


@command.command("create")
@click.argument("name")
@click.option("--type", "kind", help="What its nodes are good for: their label cluster_type.")
@click.option("--region", help="Where its nodes are; their label region.")
@click.option("--label", multiple=True, metavar="K=V", help="A label of all its nodes; repeatable.")
@click.option("--provider", help="Who makes its nodes: local or command. [default: they join by hand]")
@click.option(
    "--setting", multiple=True, metavar="K=V", help="Of the provider, as create=./create.sh; repeatable."
)
@click.option(
    "--node",
    "capacity",
    multiple=True,
    metavar="K=V",
    help="What a machine has: cpu=4, memory=8g; repeatable.",
)
@click.option("--min", "min_nodes", type=int, metavar="N", help="Nodes it always has. [default: 0]")
@click.option("--max", "max_nodes", type=int, metavar="N", help="The most it may have.")
@click.option("--idle", metavar="DURATION", help="How long a node is empty before it goes. [default: 60s]")
@click.option("--join", metavar="DURATION", help="How long a machine may take to join. [default: 2m]")
@click.option("--pause", metavar="DURATION", help="After its provider's first failure. [default: 5s]")
@click.option("--clusters", metavar="A-B", help="How many like it, itself among them, by what waits.")
@click.option("--wait", metavar="DURATION", help="Time in its queue before one more is made. [default: 60s]")
@click.option(
    "--fail-after",
    metavar="DURATION",
    help="With all nodes lost, or never; only if they join by hand. [default: 60s]",
)
@output_option
@with_cluster(WORKING_SECONDS)
def create(cluster: Cluster, name: str, kind: str | None, output: str, **said: Any) -> None:
    """Create a cluster. Its nodes join by hand (rota node token --cluster NAME), or a provider makes them."""
    tables = {
        "labels": pairs(said.pop("label"), "--label"),
        "settings": pairs(said.pop("setting"), "--setting"),
        "capacity": pairs(said.pop("capacity"), "--node"),
    }
    made = cluster.clusters.create(name, **{"type": kind, **_sizes(said), **_given(tables)})
    emit_one(output, made, made.name, lambda: [_sentence(made)])
    if not made.makes_nodes and output in ("table", "wide"):
        print_note(f"let nodes join it: rota node token --cluster {clean(made.name)}")


@command.command("resize")
@click.argument("name")
@click.option("--nodes", metavar="N", help="So many, whatever waits; auto: as many as the work needs.")
@click.option("--min", "min_nodes", type=int, metavar="N", help="Nodes it always has.")
@click.option("--max", "max_nodes", type=int, metavar="N", help="The most it may have.")
@click.option("--idle", metavar="DURATION", help="How long a node is empty before it goes.")
@click.option("--join", metavar="DURATION", help="How long a machine may take to join.")
@click.option("--pause", metavar="DURATION", help="After its provider's first failure; doubled each time.")
@click.option("--clusters", metavar="A-B", help="How many like it, itself among them, by what waits.")
@click.option("--wait", metavar="DURATION", help="Time in its queue before one more is made.")
@click.option(
    "--fail-after", metavar="DURATION", help="With all nodes lost, or never; only if they join by hand."
)
@output_option
@with_cluster(WORKING_SECONDS)
def resize(cluster: Cluster, name: str, output: str, **said: Any) -> None:
    """Change how many nodes a cluster has, or may have, or when it fails; no node that works is ended."""
    if not _given(said):
        raise click.UsageError("nothing is to change; write --nodes 3, or --min 0 --max 8")
    changed = cluster.clusters.change(name, **_sizes(said))
    emit_one(output, changed, changed.name, lambda: [_sentence(changed)])


@command.command("drain")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let it take jobs again.")
@output_option
@with_cluster(WORKING_SECONDS)
def drain(cluster: Cluster, name: str, undo: bool, output: str) -> None:
    """Give a cluster no new jobs: what runs there goes on, what has not begun moves to others."""
    changed = cluster.clusters.change(name, drain=not undo)
    emit_one(output, changed, changed.name, lambda: [_sentence(changed)])


@command.command("delete")
@click.argument("names", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, names: Sequence[str]) -> None:
    """Drain clusters, and forget each when nothing is left of it."""
    for name in names:
        cluster.clusters.delete(name)
        print_note(f"cluster {clean(name)} drains; it ends when no job, node or machine is left of it")


@command.command("why")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
@output_option
@with_cluster()
def why(cluster: Cluster, name: str, limit: int, output: str) -> None:
    """Say why a cluster grew, shrank or changed, the last day long: before, and what came of it."""
    found = cluster.clusters.get(name)
    told = cluster.events(limit, cluster=found.name)
    if output in ("json", "jsonl", "id"):
        emit(output, EVENTS, told)
        return
    print_data(_sentence(found))
    for event in told:
        at = datetime.fromtimestamp((event.at_ms or 0) / 1000).astimezone()
        print_data(f"  {at:%H:%M:%S}  {clean(event.why)}")


def _sizes(said: dict[str, Any]) -> dict[str, Any]:
    clusters = said.pop("clusters")
    if clusters is None:
        return _given(said)
    least, dash, most = str(clusters).partition("-")
    if not (dash and least.isdecimal() and most.isdecimal()):
        raise click.BadParameter(
            f"{clean(clusters)!r} is not a range; write it as 1-3", param_hint="--clusters"
        )
    return {**_given(said), "min_clusters": int(least), "max_clusters": int(most)}


def _given(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value not in (None, {})}


def _sentence(one: ClusterStatus) -> str:
    limits = f"{_limits(one)} nodes of {one.provider}" if one.makes_nodes else "nodes join by hand"
    return clean(
        f"cluster {one.name}: {one.state}, {one.open_nodes} of {one.nodes} nodes take work, {limits}, "
        f"{one.running} tasks run, {one.waiting} wait"
    )


def _lines(one: ClusterStatus) -> Iterator[str]:
    yield f"cluster   {clean(one.name)}"
    yield f"state     {tint(one.state)}" + (f": {clean(one.reason)}" if one.reason else "")
    labels = {"cluster_type": one.type, **({"region": one.region} if one.region else {}), **one.labels}
    yield "labels    " + clean(", ".join(f"{key}={value}" for key, value in labels.items()))
    yield f"nodes     {one.open_nodes} of {one.nodes} take work; {_limits(one)}"
    yield f"tasks     {one.running} run, {one.waiting} wait"
    if not one.makes_nodes:
        after = one.fail_after_seconds
        yield "fails     " + (
            "never" if after is None else f"{format_duration(after)} after its last node is lost"
        )
        return
    amounts = {
        key: format_size(value) if key in SIZES else format_number(value)
        for key, value in one.capacity.items()
    }
    has = ", ".join(f"{key} {amount}" for key, amount in amounts.items())
    yield f"provider  {clean(one.provider)}; a machine has {clean(has)}"
    if one.like is not None:
        yield f"like      {clean(one.like)}: made and ended by what waits there"
    elif one.max_clusters > 1:
        waits = f"one more when the first in the queue waits for {format_duration(one.wait_seconds)}"
        yield f"clusters  {one.min_clusters}-{one.max_clusters} like it; {waits}"
    yield f"idle      a node that is empty for {format_duration(one.idle_seconds)} goes"
    for machine in one.machines:
        reason = f": {machine['reason']}" if machine.get("reason") else ""
        yield clean(f"machine   {machine['name']}  {machine['state']}{reason}")
    yield f"next      rota cluster why {clean(one.name)}"
