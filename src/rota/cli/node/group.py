"""`rota node`: which machines there are, how one joins, and how one is taken out of service."""

from collections.abc import Iterator

import click

from rota.cli.node.brake import brake
from rota.cli.node.drain import describe_drain, drain, drain_words
from rota.cli.node.join_token import token
from rota.cli.ui.arguments import pairs
from rota.cli.ui.bars import bar
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_number, format_size
from rota.cli.ui.node_format import NODES, SIZES, certificate, heard, label_lines, machine, state
from rota.cli.ui.node_format import labels as _labels
from rota.cli.ui.output import emit, emit_one, output_option, print_note, tint
from rota.client.cluster import Cluster
from rota.client.server_views import Node

BAR_CELLS = 20


@click.group("node")
def command() -> None:
    """List nodes, let them join, and take them out of service."""


command.add_command(drain)
command.add_command(brake)
command.add_command(token)


@command.command("ls")
@output_option
@with_cluster()
def list_nodes(cluster: Cluster, output: str) -> None:
    """List nodes: what is reserved of what there is, and when each was last heard."""
    nodes = cluster.nodes.list()
    if not nodes and output in ("table", "wide"):
        makers = [one.name for one in cluster.clusters.list() if one.makes_nodes]
        come = f"cluster {clean(makers[0])} makes them when work comes: rota cluster ls" if makers else None
        print_note(f"no nodes; {come or 'let one join: rota node token'}")
        return
    emit(output, NODES, nodes)
    if any(node.state == "suspect" for node in nodes) and output in ("table", "wide"):
        held = cluster.nodes.brake()
        if held.level != "off":
            print_note(f"the brake is {clean(held.sentence)}")


@command.command("show")
@click.argument("node")
@output_option
@with_cluster()
def show(cluster: Cluster, node: str, output: str) -> None:
    """Show a node, by name or id."""
    found = cluster.nodes.get(node)
    emit_one(output, found, found.id, lambda: _lines(found))


@command.command("cordon")
@click.argument("nodes", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def cordon(cluster: Cluster, nodes: tuple[str, ...], output: str) -> None:
    """Give nodes no new tasks; what they run goes on."""
    _changed(output, [cluster.nodes.cordon(node) for node in nodes])


@command.command("open")
@click.argument("nodes", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def open_nodes(cluster: Cluster, nodes: tuple[str, ...], output: str) -> None:
    """Give nodes tasks again: undo drain and cordon."""
    _changed(output, [cluster.nodes.open(node) for node in nodes])


@command.command("taint")
@click.argument("node")
@click.argument("taints", nargs=-1, required=True, metavar="KEY[=VALUE]")
@output_option
@with_cluster(WORKING_SECONDS)
def taint(cluster: Cluster, node: str, taints: tuple[str, ...], output: str) -> None:
    """Reserve a node for jobs that tolerate its taints; what it runs goes on."""
    _tainted(output, cluster.nodes.taint(node, *taints))


@command.command("untaint")
@click.argument("node")
@click.argument("taints", nargs=-1, required=True, metavar="KEY")
@output_option
@with_cluster(WORKING_SECONDS)
def untaint(cluster: Cluster, node: str, taints: tuple[str, ...], output: str) -> None:
    """Take taints off a node."""
    _tainted(output, cluster.nodes.untaint(node, *taints))


@command.command("label")
@click.argument("node")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE")
@output_option
@with_cluster(WORKING_SECONDS)
def label(cluster: Cluster, node: str, labels: tuple[str, ...], output: str) -> None:
    """Grant a node labels, which it cannot give itself: see `granted.KEY` in conditions."""
    _granted(output, cluster.nodes.label(node, pairs(labels, "labels") or {}))


@command.command("unlabel")
@click.argument("node")
@click.argument("keys", nargs=-1, required=True, metavar="KEY")
@output_option
@with_cluster(WORKING_SECONDS)
def unlabel(cluster: Cluster, node: str, keys: tuple[str, ...], output: str) -> None:
    """Take back labels that a node was granted."""
    _granted(output, cluster.nodes.unlabel(node, *keys))


@command.command("revoke")
@click.argument("nodes", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def revoke(cluster: Cluster, nodes: tuple[str, ...], output: str) -> None:
    """Cut nodes off for ever: their certificates open nothing, and their work counts as lost."""
    _changed(output, [cluster.nodes.revoke(node) for node in nodes])


@command.command("delete")
@click.argument("nodes", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, nodes: tuple[str, ...]) -> None:
    """Forget nodes that are lost or have left."""
    for node in nodes:
        cluster.nodes.delete(node)
        print_note(f"node {node}: forgotten")


def _changed(output: str, nodes: list[Node]) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, nodes)
        return
    for node in nodes:
        print_note(describe_drain(node))


def _tainted(output: str, node: Node) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, [node])
        return
    print_note(f"node {clean(node.name)}: taints {clean(', '.join(node.taints) or 'none')}")


def _granted(output: str, node: Node) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, [node])
        return
    print_note(f"node {clean(node.name)}: granted {clean(_labels(node.granted_labels))}")


def _limits(limits: str, limited: str) -> str:
    """`cgroup v1 (memory, pids, cpu)`"""
    how = "by polling every 200 ms" if limits == "polling" else limits.replace("-", " ")
    return f"{how} ({limited.replace(',', ', ')})"


def _lines(node: Node) -> Iterator[str]:
    yield f"node {clean(node.name)}   {tint(state(node))}"
    if node.reason:
        yield f"  {clean(node.reason)}"
    if node.shortage:
        yield f"  takes nothing new: {clean(node.shortage)}"
    yield f"  id         {node.id}"
    interval = (
        "" if node.report_interval_ms is None else f", reports every {node.report_interval_ms / 1000:g} s"
    )
    yield f"  heard      {heard(node)}{interval}"
    yield f"  tasks      {node.running} running, {node.queued} queued"
    if drain_words(node):
        yield f"  drain      {drain_words(node)}"
    for name, total in node.capacity.items():
        yield f"  {clean(name):<9}  {_amount(node, name, total)}"
    yield from machine(node)
    if limits := node.labels.get("limits"):
        yield f"  limits     {clean(_limits(limits, node.labels.get('limited', '')))}"
    if node.labels.get("podman") == "rootless":
        yield "  containers none: podman is here, but is used only by an agent that is root"
    yield from label_lines(node)
    if node.taints:
        yield f"  taints     {clean(', '.join(node.taints))}"
    yield f"  agent      {node.agent_version or '-'}"
    yield f"  cert       {certificate(node)}"


def _amount(node: Node, name: str, total: float) -> str:
    show = format_size if name in SIZES else format_number
    asked, used = node.reserved.get(name, 0), (node.used or {}).get(name)
    busy = "" if used is None else f", {show(used)} used"
    words = f"{show(asked)} asked{busy} of {show(total)}"
    return f"{bar(asked, used, total, BAR_CELLS)} {words}"
