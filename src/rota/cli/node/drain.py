"""`rota node drain`: take nodes out of service, after a look at what would move."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from rota.cli.ui.arguments import seconds
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_duration, plural
from rota.cli.ui.node_format import NODES
from rota.cli.ui.output import emit, emit_one, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.server_views import DrainPlan, Node

LOOK_SECONDS = 0.5
PLACES_NAMED = 4


@click.command("drain")
@click.argument("nodes", nargs=-1, required=True)
@click.option(
    "--deadline", metavar="DURATION", help="Move by then what still runs there. [default: let it end]"
)
@click.option(
    "--force",
    is_flag=True,
    help="At once, or at the deadline: also what is started only once, and all of it.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would move, and where to.")
@click.option("--wait", is_flag=True, help="Return when the nodes are empty.")
@output_option
@with_cluster(WORKING_SECONDS)
def drain(cluster: Cluster, nodes: tuple[str, ...], output: str, **flags: Any) -> int:
    """Give nodes no new tasks and let them run empty.

    \b
    rota node drain node-1 --dry-run
    rota node drain node-1 --deadline 10m --wait

    With --dry-run it ends with 0 if everything has room elsewhere, 10 if something would wait.
    """
    within = seconds(flags["deadline"], "--deadline")
    if flags["dry_run"]:
        return _preview(cluster, nodes, output, force=flags["force"])
    drained = [cluster.nodes.drain(node, within, force=flags["force"]) for node in nodes]
    if output in ("table", "wide"):
        for node in drained:
            print_note(describe_drain(node))
    if flags["wait"]:
        drained = [_empty(cluster, node, output) for node in drained]
    if output not in ("table", "wide"):
        emit(output, NODES, drained)
    return 0


def describe_drain(node: Node) -> str:
    """`node node-1: draining, 3 running; what runs in 10m00s moves`."""
    words = f"node {clean(node.name)}: {node.eligibility}"
    if node.running:
        words += f", {node.running} running"
    return words + ("; " if node.running and node.drain else "") + drain_words(node)


def drain_words(node: Node) -> str:
    """When what runs there moves, and what of it does not; empty where nothing is to be said."""
    if not node.drain or not node.running:
        return ""
    left_ms, stays = node.drain.get("left_ms"), int(node.drain.get("stays") or 0)
    parts = []
    if left_ms is None:
        parts.append("it may end")
    elif left_ms > 0:
        parts.append(f"what still runs in {format_duration(left_ms / 1000)} moves")
    else:
        parts.append("it is stopped and moves")
    if stays and left_ms is not None:
        parts.append(f"{plural(stays, 'task')} {'is' if stays == 1 else 'are'} started only once and may end")
    return ", ".join(parts)


def _empty(cluster: Cluster, node: Node, output: str) -> Node:
    while node.eligibility == "draining":
        time.sleep(LOOK_SECONDS)
        node = cluster.nodes.get(node.id)
    if output in ("table", "wide"):
        print_note(describe_drain(node))
    return node


def _preview(cluster: Cluster, nodes: tuple[str, ...], output: str, *, force: bool) -> int:
    plan = cluster.nodes.plan_drain(*nodes, force=force)
    waiting = sum(int(job.get("waits", 0)) for job in plan.jobs)
    emit_one(output, plan, "wait" if waiting else "now", lambda: _lines(plan, waiting))
    return 10 if waiting else 0


def _lines(plan: DrainPlan, waiting: int) -> Iterator[str]:
    names = clean(", ".join(plan.nodes))
    fates = {fate: sum(int(j.get("tasks", 0)) for j in plan.jobs if j.get("fate") == fate) for fate in FATES}
    if not plan.jobs:
        yield f"{names}: nothing runs there"
        return
    said = [FATES[fate].format(plural(count, "task")) for fate, count in fates.items() if count]
    yield f"{names}: " + ", ".join(said) + (f"; {waiting} would wait" if waiting else "")
    for job in plan.jobs:
        yield from _job_lines(job)


FATES = {
    "moves": "{} would move",
    "stays": "{} may end there",
    "ends": "{} would be ended for good",
    "asks": "{} would be stopped and wait for a controller",
}


def _job_lines(job: Mapping[str, Any]) -> Iterator[str]:
    whose = f"job {job['job']}" if job.get("job") else "a job of another namespace"
    tasks = plural(int(job.get("tasks", 0)), "task")
    match job.get("fate"):
        case "stays":
            yield f"  {whose}: {tasks} started only once: left to end"
        case "ends":
            yield f"  {whose}: {tasks} stopped, and not started again"
        case "asks":
            yield f"  {whose}: {tasks} stopped; its controller says what becomes of them"
        case _:
            yield f"  {whose}: {tasks}" + _where(job)
            for reason in job.get("reasons", ()):
                yield f"    - {clean(str(reason.get('text')))}"
            for change in job.get("changes", ()):
                yield f"    → {clean(str(change))}"


def _where(job: Mapping[str, Any]) -> str:
    places = [f"{place['tasks']} on {clean(str(place['node']))}" for place in job.get("places", ())]
    if len(places) > PLACES_NAMED:
        places = [*places[:PLACES_NAMED], f"… {len(places) - PLACES_NAMED} more nodes"]
    waits = int(job.get("waits", 0))
    if waits:
        places.append(f"{waits} would wait")
    return " → " + ", ".join(places)
