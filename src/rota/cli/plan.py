"""`rota plan`: a dry run on the real scheduler and the live state, perhaps with other nodes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from rota.cli.ui.connection import with_cluster
from rota.cli.ui.formats import clean, plural
from rota.cli.ui.output import emit_one, output_option
from rota.cli.ui.spec_options import job_spec, spec_options
from rota.cli.why import reasons_told
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
    help="As if it had joined: cpu=8,memory=32g; count=3 for three, region=eu for a label; repeatable.",
)
@click.option("--without", multiple=True, metavar="NODE", help="As if this had left; repeatable.")
@click.option("--scale", is_flag=True, help="Say also which cluster would grow for it, and by how much.")
@spec_options
@output_option
@with_cluster()
def command(cluster: Cluster, job: tuple[str, ...], output: str, **flags: Any) -> int:
    """Say what would become of a job, without submitting it.

    \b
    rota plan job.toml
    rota plan --memory 64g --add-node cpu=16,memory=128g -- ./simulate

    It ends with 0 if some of it would start now, 10 if it would wait, 11 if it can never run here.
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
    """`count=3,cpu=8,memory=32g,resource.licence=2,region=eu`; what is no amount is a label."""
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
    for one in outlook.evicts:
        whose = f"of job {one['job']}" if one.get("job") else "of another namespace"
        yield f"  ✗ {plural(int(one.get('tasks', 0)), 'task')} {whose} would give way"
    yield from reasons_told(outlook)
    if outlook.grows is not None:
        yield clean(_grown(outlook.grows))


def _grown(one: Mapping[str, Any]) -> str:
    """In the words of its ledger."""
    starts = "all" if one["starts"] == one["waiting"] else f"{one['starts']} of them"
    head = f"cluster {one['cluster']} would get {plural(one['nodes'], 'node')} more"
    waiting = f"{plural(one['waiting'], 'task')} would wait there, {starts} would start then"
    return f"  + {head}: {waiting}; it has {one['has']}, its limit is {one['limit']}"


def _places(places: Sequence[Any]) -> Iterator[str]:
    """The sentence names a few; here are all, unless they are very many."""
    if len(places) < 2:
        return
    for place in places[:MOST_NODES]:
        new = " (new)" if place.get("new") else ""
        yield f"  {plural(int(place.get('tasks', 0)), 'task')} on {clean(str(place.get('node')))}{new}"
    if len(places) > MOST_NODES:
        yield f"  … and {len(places) - MOST_NODES} more nodes"
