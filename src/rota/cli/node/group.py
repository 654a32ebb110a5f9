"""`rota node`: list nodes, let machines join, and take nodes out of service."""

from collections.abc import Iterator

import click

from rota.cli.node.brake import brake
from rota.cli.node.drain import describe_drain, drain, drain_progress
from rota.cli.node.join_token import token
from rota.cli.ui.arguments import pairs
from rota.cli.ui.bars import bar
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_number, format_size
from rota.cli.ui.node_format import NODES, SIZES, certificate, label_lines, last_seen, machine, state
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
    """List nodes: reserved and total resources, and when each was last seen."""
    nodes = cluster.nodes.list()
    if not nodes and output in ("table", "wide"):
        elastic = [status.name for status in cluster.clusters.list() if status.makes_nodes]
        created = f"cluster {clean(elastic[0])} creates them on demand: rota cluster ls" if elastic else None
        print_note(f"no nodes; {created or 'let one join: rota node token'}")
        return
    emit(output, NODES, nodes)
    if any(node.state == "suspect" for node in nodes) and output in ("table", "wide"):
        brake_status = cluster.nodes.brake()
        if brake_status.level != "off":
            print_note(f"the brake is {clean(brake_status.sentence)}")


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
    """Place no new tasks on nodes; running tasks go on."""
    _print_drains(output, [cluster.nodes.cordon(node) for node in nodes])


@command.command("open")
@click.argument("nodes", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def open_nodes(cluster: Cluster, nodes: tuple[str, ...], output: str) -> None:
    """Let nodes accept tasks again: undo drain and cordon."""
    _print_drains(output, [cluster.nodes.open(node) for node in nodes])


@command.command("taint")
@click.argument("node")
@click.argument("taints", nargs=-1, required=True, metavar="KEY[=VALUE]")
@output_option
@with_cluster(WORKING_SECONDS)
def taint(cluster: Cluster, node: str, taints: tuple[str, ...], output: str) -> None:
    """Reserve a node for jobs that tolerate its taints; running tasks go on."""
    _print_taints(output, cluster.nodes.taint(node, *taints))


@command.command("untaint")
@click.argument("node")
@click.argument("taints", nargs=-1, required=True, metavar="KEY")
@output_option
@with_cluster(WORKING_SECONDS)
def untaint(cluster: Cluster, node: str, taints: tuple[str, ...], output: str) -> None:
    """Remove taints from a node."""
    _print_taints(output, cluster.nodes.untaint(node, *taints))


@command.command("label")
@click.argument("node")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE")
@output_option
@with_cluster(WORKING_SECONDS)
def label(cluster: Cluster, node: str, labels: tuple[str, ...], output: str) -> None:
    """Grant labels to a node; conditions on `granted.KEY` accept no others."""
    _print_granted(output, cluster.nodes.label(node, pairs(labels, "labels") or {}))


@command.command("unlabel")
@click.argument("node")
@click.argument("keys", nargs=-1, required=True, metavar="KEY")
@output_option
@with_cluster(WORKING_SECONDS)
def unlabel(cluster: Cluster, node: str, keys: tuple[str, ...], output: str) -> None:
    """Remove granted labels from a node."""
    _print_granted(output, cluster.nodes.unlabel(node, *keys))


@command.command("revoke")
@click.argument("nodes", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def revoke(cluster: Cluster, nodes: tuple[str, ...], output: str) -> None:
    """Revoke the certificates of nodes permanently; the nodes are declared lost."""
    _print_drains(output, [cluster.nodes.revoke(node) for node in nodes])


@command.command("delete")
@click.argument("nodes", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, nodes: tuple[str, ...]) -> None:
    """Delete nodes that are lost or have left."""
    for node in nodes:
        cluster.nodes.delete(node)
        print_note(f"node {node}: deleted")


def _print_drains(output: str, nodes: list[Node]) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, nodes)
        return
    for node in nodes:
        print_note(describe_drain(node))


def _print_taints(output: str, node: Node) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, [node])
        return
    print_note(f"node {clean(node.name)}: taints {clean(', '.join(node.taints) or 'none')}")


def _print_granted(output: str, node: Node) -> None:
    if output not in ("table", "wide"):
        emit(output, NODES, [node])
        return
    print_note(f"node {clean(node.name)}: granted {clean(_labels(node.granted_labels))}")


def _limits(limits: str, limited: str) -> str:
    """How limits are enforced, as `cgroup v1 (memory, pids, cpu)`."""
    how = "by polling every 200 ms" if limits == "polling" else limits.replace("-", " ")
    return f"{how} ({limited.replace(',', ', ')})"


def _lines(node: Node) -> Iterator[str]:
    yield f"node {clean(node.name)}   {tint(state(node))}"
    if node.reason:
        yield f"  {clean(node.reason)}"
    if node.shortage:
        yield f"  accepts no new tasks: {clean(node.shortage)}"
    yield f"  id         {node.id}"
    interval = (
        "" if node.report_interval_ms is None else f", reports every {node.report_interval_ms / 1000:g} s"
    )
    yield f"  last seen  {last_seen(node)}{interval}"
    yield f"  tasks      {node.running} running, {node.queued} queued"
    if drain_progress(node):
        yield f"  drain      {drain_progress(node)}"
    for name, total in node.capacity.items():
        yield f"  {clean(name):<9}  {_amount(node, name, total)}"
    yield from machine(node)
    if limits := node.labels.get("limits"):
        yield f"  limits     {clean(_limits(limits, node.labels.get('limited', '')))}"
    if node.labels.get("podman") == "rootless":
        yield "  containers none: podman is installed, but only an agent that runs as root uses it"
    yield from label_lines(node)
    if node.taints:
        yield f"  taints     {clean(', '.join(node.taints))}"
    yield f"  agent      {node.agent_version or '-'}"
    yield f"  cert       {certificate(node)}"


def _amount(node: Node, name: str, total: float) -> str:
    show = format_size if name in SIZES else format_number
    reserved, used = node.reserved.get(name, 0), (node.used or {}).get(name)
    usage = "" if used is None else f", {show(used)} used"
    amounts = f"{show(reserved)} reserved{usage} of {show(total)}"
    return f"{bar(reserved, used, total, BAR_CELLS)} {amounts}"
