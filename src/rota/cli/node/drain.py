"""`rota node drain`: take nodes out of service, with a preview of what would move."""

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

POLL_SECONDS = 0.5
PLACES_NAMED = 4


@click.command("drain")
@click.argument("nodes", nargs=-1, required=True)
@click.option(
    "--deadline",
    metavar="DURATION",
    help="Move tasks that still run after this time. [default: let them end]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Immediately, or at the deadline: stop all tasks, even those that are started only once.",
)
@click.option("--dry-run", is_flag=True, help="Only show which tasks would move, and where.")
@click.option("--wait", is_flag=True, help="Return when the nodes are empty.")
@output_option
@with_cluster(WORKING_SECONDS)
def drain(cluster: Cluster, nodes: tuple[str, ...], output: str, **flags: Any) -> int:
    """Place no new tasks on nodes and let them become empty.

    \b
    rota node drain node-1 --dry-run
    rota node drain node-1 --deadline 10m --wait

    With --dry-run the exit code is 0 if all tasks fit elsewhere, 10 if some would wait.
    """
    within = seconds(flags["deadline"], "--deadline")
    if flags["dry_run"]:
        return _preview(cluster, nodes, output, force=flags["force"])
    drained = [cluster.nodes.drain(node, within, force=flags["force"]) for node in nodes]
    if output in ("table", "wide"):
        for node in drained:
            print_note(describe_drain(node))
    if flags["wait"]:
        drained = [_wait_until_empty(cluster, node, output) for node in drained]
    if output not in ("table", "wide"):
        emit(output, NODES, drained)
    return 0


def describe_drain(node: Node) -> str:
    """As `node node-1: draining, 3 running; what still runs in 10m00s moves`."""
    text = f"node {clean(node.name)}: {node.eligibility}"
    if node.running:
        text += f", {node.running} running"
    return text + ("; " if node.running and node.drain else "") + drain_progress(node)


def drain_progress(node: Node) -> str:
    """When the running tasks move, and how many do not; empty if the node does not drain."""
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


def _wait_until_empty(cluster: Cluster, node: Node, output: str) -> Node:
    while node.eligibility == "draining":
        time.sleep(POLL_SECONDS)
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
    parts = [FATES[fate].format(plural(count, "task")) for fate, count in fates.items() if count]
    yield f"{names}: " + ", ".join(parts) + (f"; {waiting} would wait" if waiting else "")
    for job in plan.jobs:
        yield from _job_lines(job)


FATES = {
    "moves": "{} would move",
    "stays": "{} may end there",
    "ends": "{} would end permanently",
    "asks": "{} would be stopped and wait for a controller",
}


def _job_lines(job: Mapping[str, Any]) -> Iterator[str]:
    name = f"job {job['job']}" if job.get("job") else "a job of another namespace"
    tasks = plural(int(job.get("tasks", 0)), "task")
    match job.get("fate"):
        case "stays":
            yield f"  {name}: {tasks} started only once: left to end"
        case "ends":
            yield f"  {name}: {tasks} stopped, and not started again"
        case "asks":
            yield f"  {name}: {tasks} stopped; its recovery controller decides on them"
        case _:
            yield f"  {name}: {tasks}" + _where(job)
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
