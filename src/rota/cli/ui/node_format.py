"""Texts about nodes: state, shares, labels, machine statistics, and the columns of node lists."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rota.cli.ui.formats import clean, format_duration, format_number, format_size, plural
from rota.cli.ui.output import TableColumn, TableListing
from rota.client.server_views import Node

SIZES = ("memory", "disk")


def state(node: Node) -> str:
    return node.state if node.eligibility == "open" else f"{node.state}, {node.eligibility}"


def share(node: Node, name: str) -> str:
    reserved, capacity = node.reserved.get(name, 0), node.capacity.get(name, 0)
    show = format_size if name in SIZES else format_number
    return f"{show(reserved)}/{show(capacity)}"


def last_seen(node: Node) -> str:
    return "-" if node.heard_ms_ago is None else f"{format_duration(node.heard_ms_ago / 1000)} ago"


def certificate(node: Node) -> str:
    """How long the certificate is valid, or since when it has expired."""
    if node.certificate_expires_at_ms is None:
        return "-"
    left = (node.certificate_expires_at_ms - time.time_ns() // 1_000_000) / 1000
    return f"expired {format_duration(-left)} ago" if left < 0 else f"for {format_duration(left)}"


def _reason(node: Node) -> str:
    return node.reason or (f"taints: {', '.join(node.taints)}" if node.taints else "")


def labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items()) or "-"


def _declared(node: Node) -> str:
    return labels({name: value for name, value in node.labels.items() if name not in node.granted_labels})


def label_lines(node: Node) -> Iterator[str]:
    """Declared labels, granted labels, and declared labels that are ignored."""
    yield f"  labels     {clean(_declared(node))}"
    if node.granted_labels:
        yield f"  granted    {clean(labels(node.granted_labels))}"
    if node.ignored_labels:
        yield f"  ignored    {clean(labels(node.ignored_labels))}: declared by its agent, but not granted"


def machine(node: Node) -> Iterator[str]:
    """Measured load, swap, file systems and GPUs of the machine."""
    statistics = node.statistics
    if not statistics:
        return
    yield f"  load       {statistics.get('load', 0):.2f} on {plural(int(statistics.get('cores', 0)), 'core')}"
    swap = statistics.get("swap") or {}
    if swap.get("total"):
        used = format_size(swap["total"] - swap.get("free", 0))
        yield f"  swap       {used} used of {format_size(swap['total'])}"
    for disk in statistics.get("disks", ()):
        free, total = format_size(disk["free"]), format_size(disk["total"])
        yield f"  disk       {free} free of {total} on {clean(str(disk['path']))}"
    for position, gpu in enumerate(statistics.get("gpus", ())):
        yield f"  gpu {position:<5}  {_gpu(gpu)}"


def _gpu(gpu: Mapping[str, Any]) -> str:
    busy, total, used = gpu.get("busy"), gpu.get("memory_total"), gpu.get("memory_used")
    parts = [clean(str(gpu.get("name") or "unnamed"))]
    if busy is not None:
        parts.append(f"{busy} % busy")
    if total is not None:
        parts.append(
            format_size(total) if used is None else f"{format_size(used)} used of {format_size(total)}"
        )
    return ", ".join(parts)


NODES: TableListing[Node] = TableListing(
    "nodes",
    [
        TableColumn("NODE", lambda node: node.name),
        TableColumn("ID", lambda node: node.id, wide=True),
        TableColumn("STATE", state),
        TableColumn("CPU", lambda node: share(node, "cpu"), right=True),
        TableColumn("MEMORY", lambda node: share(node, "memory"), right=True),
        TableColumn("GPU", lambda node: share(node, "gpu"), right=True),
        TableColumn("DISK", lambda node: share(node, "disk"), wide=True, right=True),
        TableColumn("RUNNING", lambda node: node.running, right=True),
        TableColumn("QUEUED", lambda node: node.queued, wide=True, right=True),
        TableColumn("HEARD", last_seen, right=True),
        TableColumn("CERT", certificate, wide=True, right=True),
        TableColumn("VERSION", lambda node: node.agent_version or "-", wide=True),
        TableColumn("LABELS", _declared, wide=True),
        TableColumn("GRANTED", lambda node: labels(node.granted_labels), wide=True),
        TableColumn("TAINTS", lambda node: ", ".join(node.taints) or "-", wide=True),
        TableColumn("REASON", _reason),
    ],
    lambda node: node.id,
)
