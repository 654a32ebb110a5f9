"""`rota plan`: a dry run of the real scheduler on the current state, with nodes added or removed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from rota.cli.ui.connection import with_cluster
from rota.cli.ui.formats import clean, plural
from rota.cli.ui.output import emit_one, output_option
from rota.cli.ui.spec_options import job_spec, spec_options
from rota.cli.why import reason_lines
from rota.client.cluster import Cluster
from rota.client.views import Outlook

EXIT_CODES = {"now": 0, "wait": 10, "never": 11}
JOB_FILES = (".toml", ".yaml", ".yml", ".json")
AMOUNTS = ("cpu", "memory", "disk", "gpu")
RESOURCE = "resource."
MOST_NODES = 20


@click.command("plan", context_settings={"allow_interspersed_args": False})
@click.argument("job", nargs=-1, type=click.UNPROCESSED, metavar="JOBFILE|-- COMMAND")
@click.option(
    "--add-node",
    "add_nodes",
    multiple=True,
    metavar="AMOUNTS",
    help="Assume such a node: cpu=8,memory=32g; count=3 for three, region=eu for a label; repeatable.",
)
@click.option("--without", multiple=True, metavar="NODE", help="Assume that this node has left; repeatable.")
@click.option("--scale", is_flag=True, help="Also show which cluster would grow for it, and by how much.")
@spec_options
@output_option
@with_cluster()
def command(cluster: Cluster, job: tuple[str, ...], output: str, **flags: Any) -> int:
    """Show where and when a job would start, without submitting it.

    \b
    rota plan job.toml
    rota plan --memory 64g --add-node cpu=16,memory=128g -- ./simulate

    The exit code is 0 if some tasks would start now, 10 if the job would wait, 11 if it can never run here.
    """
    if job and job[0].endswith(JOB_FILES) and not flags["file"]:
        if len(job) > 1:
            raise click.UsageError("flags go before the job file")
        flags["file"], job = job[0], ()
    new = [_new_node(text) for text in flags["add_nodes"]]
    outlook = cluster.plan_spec(job_spec(flags, job), new, flags["without"], scale=flags["scale"])
    emit_one(output, outlook, outlook.outcome, lambda: _lines(outlook))
    return EXIT_CODES.get(outlook.outcome, 1)


def _new_node(text: str) -> dict[str, Any]:
    """`count=3,cpu=8,memory=32g,resource.licence=2,region=eu`; other names are labels."""
    node: dict[str, Any] = {"count": 1, "capacity": {}, "labels": {}}
    for part in text.split(","):
        name, sign, value = (one.strip() for one in part.partition("="))
        if not name or not sign or not value:
            hint = "write cpu=8,memory=32g, and labels as region=eu"
            raise click.BadParameter(f"{part!r} is not NAME=VALUE; {hint}", param_hint="--add-node")
        if name == "count":
            node["count"] = value
        elif name in AMOUNTS or name.startswith(RESOURCE):
            node["capacity"][name.removeprefix(RESOURCE)] = value
        else:
            node["labels"][name] = value
    if not node["capacity"]:
        raise click.BadParameter(f"{text!r} has no amounts; write cpu=8,memory=32g", param_hint="--add-node")
    return node


def _lines(outlook: Outlook) -> Iterator[str]:
    yield clean(outlook.sentence)
    yield from _places(outlook.places)
    for victim in outlook.evicts:
        job = f"of job {victim['job']}" if victim.get("job") else "of another namespace"
        yield f"  ✗ {plural(int(victim.get('tasks', 0)), 'task')} {job} would be preempted"
    yield from reason_lines(outlook)
    if outlook.grows is not None:
        yield clean(_growth(outlook.grows))


def _growth(grown: Mapping[str, Any]) -> str:
    """How a cluster would grow, in the words of `rota cluster why`."""
    starts = "all" if grown["starts"] == grown["waiting"] else f"{grown['starts']} of them"
    head = f"cluster {grown['cluster']} would get {plural(grown['nodes'], 'node')} more"
    waiting = f"{plural(grown['waiting'], 'task')} would wait there, {starts} would start then"
    return f"  + {head}: {waiting}; it has {grown['has']}, its limit is {grown['limit']}"


def _places(places: Sequence[Any]) -> Iterator[str]:
    """One line per node, up to a limit; the sentence above names only a few."""
    if len(places) < 2:
        return
    for place in places[:MOST_NODES]:
        new = " (new)" if place.get("new") else ""
        yield f"  {plural(int(place.get('tasks', 0)), 'task')} on {clean(str(place.get('node')))}{new}"
    if len(places) > MOST_NODES:
        yield f"  … and {len(places) - MOST_NODES} more nodes"
