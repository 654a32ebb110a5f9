"""`rota node`: which machines there are, how one joins, and how one is taken out of service."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from rota.cli.arguments import pairs, seconds
from rota.cli.output import Column, Listing, emit, emit_one, output_option, tell, tint
from rota.cli.session import WORKING_SECONDS, with_cluster
from rota.cli.words import clean, duration, number, size
from rota.client.cluster import Cluster
from rota.client.views import Node

SIZES = ("memory", "disk")
TOKEN_VALID = "30m"


def _state(node: Node) -> str:
    return node.state if node.eligibility == "open" else f"{node.state}, {node.eligibility}"


def _share(node: Node, name: str) -> str:
    reserved, capacity = node.reserved.get(name, 0), node.capacity.get(name, 0)
    show = size if name in SIZES else number
    return f"{show(reserved)}/{show(capacity)}"


def _heard(node: Node) -> str:
    return "-" if node.heard_ms_ago is None else f"{duration(node.heard_ms_ago / 1000)} ago"


def _reason(node: Node) -> str:
    return node.reason or (f"taints: {', '.join(node.taints)}" if node.taints else "")


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items()) or "-"


NODES: Listing[Node] = Listing(
    "nodes",
    [
        Column("NODE", lambda node: node.name),
        Column("ID", lambda node: node.id, wide=True),
        Column("STATE", _state),
        Column("CPU", lambda node: _share(node, "cpu"), right=True),
        Column("MEMORY", lambda node: _share(node, "memory"), right=True),
        Column("GPU", lambda node: _share(node, "gpu"), right=True),
        Column("DISK", lambda node: _share(node, "disk"), wide=True, right=True),
        Column("RUNNING", lambda node: node.running, right=True),
        Column("QUEUED", lambda node: node.queued, wide=True, right=True),
        Column("HEARD", _heard, right=True),
        Column("VERSION", lambda node: node.agent_version or "-", wide=True),
        Column("LABELS", lambda node: _labels(node.labels), wide=True),
        Column("TAINTS", lambda node: ", ".join(node.taints) or "-", wide=True),
        Column("REASON", _reason),
    ],
    lambda node: node.id,
)


@click.group("node")
def command() -> None:
    """List nodes, let them join, and take them out of service."""


@command.command("ls")
@output_option
@with_cluster()
def list_nodes(cluster: Cluster, output: str) -> None:
    """List nodes: what is reserved of what there is, and when each was last heard."""
    nodes = cluster.nodes()
    if not nodes and output in ("table", "wide"):
        tell("no nodes; let one join: rota node token")
        return
    emit(output, NODES, nodes)


@command.command("show")
@click.argument("node")
@output_option
@with_cluster()
def show(cluster: Cluster, node: str, output: str) -> None:
    """Show a node, by name or id."""
    found = cluster.node(node)
    emit_one(output, found, found.id, lambda: _lines(found))


@command.command("token")
@click.option("--label", multiple=True, metavar="K=V", help="A label the node will have; repeatable.")
@click.option("--cluster", "cluster_name", help="The cluster it will belong to. [default: default]")
@click.option(
    "--valid", metavar="DURATION", default=TOKEN_VALID, show_default=True, help="How long it may be used."
)
@click.option(
    "--local", is_flag=True, help="For an agent on this machine, where the server listens on loopback."
)
@output_option
@with_cluster(WORKING_SECONDS)
def token(cluster: Cluster, label: Sequence[str], valid: str, output: str, **wishes: Any) -> None:
    """Print the line that makes another machine a node; it can be used once."""
    valid_seconds = seconds(valid, "--valid") or 0.0
    made = cluster.join_token(
        labels=pairs(label, "--label") or None,
        cluster=wishes["cluster_name"],
        valid_seconds=valid_seconds,
        local=wishes["local"] or None,
    )
    emit_one(output, made, made.token, lambda: [made.line])
    if output in ("table", "wide"):
        tell(f"run this line on the new machine (single use, valid for {duration(valid_seconds)})")


@command.command("drain")
@click.argument("nodes", nargs=-1, required=True)
@click.option(
    "--deadline", metavar="DURATION", help="End by then what still runs there. [default: let it finish]"
)
@output_option
@with_cluster(WORKING_SECONDS)
def drain(cluster: Cluster, nodes: tuple[str, ...], deadline: str | None, output: str) -> None:
    """Give nodes no new tasks and let them run empty."""
    deadline_seconds = seconds(deadline, "--deadline")
    _changed(output, [cluster.drain(node, deadline_seconds) for node in nodes])


@command.command("cordon")
@click.argument("nodes", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def cordon(cluster: Cluster, nodes: tuple[str, ...], output: str) -> None:
    """Give nodes no new tasks; what they run goes on."""
    _changed(output, [cluster.cordon(node) for node in nodes])


@command.command("open")
@click.argument("nodes", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def open_nodes(cluster: Cluster, nodes: tuple[str, ...], output: str) -> None:
    """Give nodes tasks again: undo drain and cordon."""
    _changed(output, [cluster.open(node) for node in nodes])


@command.command("taint")
@click.argument("node")
@click.argument("taints", nargs=-1, required=True, metavar="KEY[=VALUE]")
@output_option
@with_cluster(WORKING_SECONDS)
def taint(cluster: Cluster, node: str, taints: tuple[str, ...], output: str) -> None:
    """Reserve a node for jobs that tolerate its taints; what it runs goes on."""
    _tainted(output, cluster.taint(node, *taints))


@command.command("untaint")
@click.argument("node")
@click.argument("taints", nargs=-1, required=True, metavar="KEY")
@output_option
@with_cluster(WORKING_SECONDS)
def untaint(cluster: Cluster, node: str, taints: tuple[str, ...], output: str) -> None:
    """Take taints off a node."""
    _tainted(output, cluster.untaint(node, *taints))


@command.command("delete")
@click.argument("nodes", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, nodes: tuple[str, ...]) -> None:
    """Forget nodes that are lost or have left."""
    for node in nodes:
        cluster.forget_node(node)
        tell(f"node {node}: forgotten")


def _changed(output: str, nodes: list[Node]) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, nodes)
        return
    for node in nodes:
        tell(
            f"node {clean(node.name)}: {node.eligibility}"
            + (f", {node.running} running" if node.running else "")
        )


def _tainted(output: str, node: Node) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, [node])
        return
    tell(f"node {clean(node.name)}: taints {clean(', '.join(node.taints) or 'none')}")


def _limits(limits: str, limited: str) -> str:
    """`cgroup v1 (memory, pids, cpu)`"""
    how = "by polling every 200 ms" if limits == "polling" else limits.replace("-", " ")
    return f"{how} ({limited.replace(',', ', ')})"


def _lines(node: Node) -> Iterator[str]:
    yield f"node {clean(node.name)}   {tint(_state(node))}"
    if node.reason:
        yield f"  {clean(node.reason)}"
    yield f"  id         {node.id}"
    yield f"  heard      {_heard(node)}"
    yield f"  tasks      {node.running} running, {node.queued} queued"
    for name in node.capacity:
        used = (node.used or {}).get(name)
        show = size if name in SIZES else number
        yield f"  {clean(name):<9}  {_share(node, name)} reserved" + (
            f", {show(used)} used" if used is not None else ""
        )
    if limits := node.labels.get("limits"):
        yield f"  limits     {clean(_limits(limits, node.labels.get('limited', '')))}"
    yield f"  labels     {clean(_labels(node.labels))}"
    if node.taints:
        yield f"  taints     {clean(', '.join(node.taints))}"
    yield f"  agent      {node.agent_version or '-'}"
