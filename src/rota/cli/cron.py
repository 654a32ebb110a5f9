"""`rota cron`: jobs that are submitted on a schedule."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.job_file import read_job_file
from rota.cli.ui.output import TableColumn, TableListing, emit, emit_one, output_option, print_note
from rota.cli.ui.spec_options import job_spec, spec_options
from rota.client.cluster import Cluster
from rota.client.context import setting
from rota.client.server_views import Cron

_RULES = ("schedule", "zone", "overlap", "missed", "history")


def _time(at_ms: int | None) -> str:
    """A time in the local time zone."""
    return (
        "-" if at_ms is None else datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
    )


CRONS: TableListing[Cron] = TableListing(
    "crons",
    [
        TableColumn("CRON", lambda cron: cron.name),
        TableColumn("SCHEDULE", lambda cron: cron.schedule),
        TableColumn("ZONE", lambda cron: cron.zone),
        TableColumn("LAST", lambda cron: _time(cron.last_at_ms)),
        TableColumn("NEXT", lambda cron: "paused" if cron.paused else _time(cron.next_at_ms)),
        TableColumn("RUNS NOW", lambda cron: len(cron.running), right=True),
        TableColumn("SKIPPED", lambda cron: cron.skipped, right=True),
        TableColumn("NAMESPACE", lambda cron: cron.namespace, wide=True),
        TableColumn("OVERLAP", lambda cron: cron.overlap, wide=True),
        TableColumn("MISSED", lambda cron: cron.missed, wide=True),
        TableColumn("REASON", lambda cron: cron.reason or ""),
    ],
    lambda cron: cron.name,
)


@click.group("cron")
def command() -> None:
    """Submit jobs on a schedule."""


namespace_option = click.option("--namespace", help="The namespace. [default: ROTA_NAMESPACE, or default]")


@command.command("create", context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@spec_options
@click.option("--schedule", metavar="'M H D M W'", help="When, as '*/5 * * * *' or @daily.")
@click.option("--zone", metavar="ZONE", help="Time zone of the schedule, as Europe/Zurich. [default: UTC]")
@click.option(
    "--overlap",
    metavar="RULE",
    help="If the previous run has not ended: allow, skip or replace. [default: skip]",
)
@click.option("--missed", metavar="RULE", help="For missed runs: skip, once or all. [default: once]")
@click.option("--history", type=int, metavar="N", help="How many ended runs are kept. [default: 10]")
@click.option("--replace", is_flag=True, help="Replace an existing cron of this name.")
@output_option
@with_cluster(WORKING_SECONDS)
def create(cluster: Cluster, program: tuple[str, ...], output: str, replace: bool, **flags: Any) -> None:
    """Create a cron, from flags or from a file with a [job] table.

    \b
    rota cron create --name nightly --schedule '0 3 * * *' --zone Europe/Zurich -- ./backup
    rota cron create -f nightly.toml
    """
    settings = read_job_file(flags["file"]) if flags["file"] else {}
    before = settings.pop("job", {})
    if not isinstance(before, Mapping):
        raise click.BadParameter("job is not a table", param_hint="--file")
    job = job_spec({**flags, "file": None}, program, before=before)
    settings |= {rule: flags[rule] for rule in _RULES if flags[rule] is not None}
    name, namespace = job.pop("name", None) or settings.pop("name", None), job.pop("namespace", None)
    settings.pop("name", None)
    namespace = setting("namespace", namespace or settings.pop("namespace", None)).value
    if not name or not settings.get("schedule"):
        missing = "--schedule '0 3 * * *'" if name else "--name NAME"
        raise click.UsageError(f"a cron needs a name and a schedule; write {missing}")
    rules = {**settings, **({"namespace": namespace} if namespace else {})}
    made = _create(cluster, name, rules, job, replace=replace)
    emit_one(output, made, made.name, lambda: _lines(made))


def _create(
    cluster: Cluster, name: str, rules: dict[str, Any], job: dict[str, Any], *, replace: bool
) -> Cron:
    schedule = str(rules.pop("schedule"))
    known = replace and any(
        cron.name == name for cron in cluster.crons.list(rules.get("namespace", "default"))
    )
    act = cluster.crons.replace if known else cluster.crons.create
    return act(name, schedule, job, **rules)


@command.command("ls")
@click.option("--namespace", help="Crons of this namespace only. [default: ROTA_NAMESPACE, or all]")
@output_option
@with_cluster()
def list_crons(cluster: Cluster, namespace: str | None, output: str) -> None:
    """List crons with their last and next run."""
    crons = cluster.crons.list(setting("namespace", namespace).value)
    if not crons and output in ("table", "wide"):
        print_note("no crons; create one: rota cron create --name hello --schedule @hourly -- echo hello")
        return
    emit(output, CRONS, crons)


@command.command("show")
@click.argument("name")
@namespace_option
@output_option
@with_cluster()
def show(cluster: Cluster, name: str, namespace: str | None, output: str) -> None:
    """Show a cron and its runs, newest first."""
    cron = cluster.crons.get(name, setting("namespace", namespace).value)
    emit_one(output, cron, cron.name, lambda: _lines(cron))


@command.command("pause")
@click.argument("name")
@namespace_option
@with_cluster(WORKING_SECONDS)
def pause(cluster: Cluster, name: str, namespace: str | None) -> None:
    """Plan no more runs; running ones go on."""
    cluster.crons.pause(name, setting("namespace", namespace).value)
    print_note(f"cron {clean(name)} is paused; resume it: rota cron resume {clean(name)}")


@command.command("resume")
@click.argument("name")
@namespace_option
@with_cluster(WORKING_SECONDS)
def resume(cluster: Cluster, name: str, namespace: str | None) -> None:
    """Plan runs again from now on; those missed during the pause are left out."""
    cron = cluster.crons.resume(name, setting("namespace", namespace).value)
    print_note(f"cron {clean(name)} is resumed; its next run: {_time(cron.next_at_ms)}")


@command.command("run")
@click.argument("name")
@namespace_option
@output_option
@with_cluster(WORKING_SECONDS)
def run(cluster: Cluster, name: str, namespace: str | None, output: str) -> None:
    """Run a cron now, in addition to its schedule; prints the id of the job."""
    job = cluster.crons.run(name, setting("namespace", namespace).value)
    print_note(f"job {job.id} “{clean(job.status.name)}” submitted; follow it: rota logs -f {job.id}")
    emit_one(output, job.status, job.id, lambda: [job.id])


@command.command("delete")
@click.argument("name")
@namespace_option
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, name: str, namespace: str | None) -> None:
    """Delete a cron; its jobs stay and keep running."""
    cluster.crons.delete(name, setting("namespace", namespace).value)
    print_note(f"cron {clean(name)} is deleted")


def _lines(cron: Cron) -> Iterator[str]:
    yield f"cron {clean(cron.name)}: {clean(cron.schedule)} in {clean(cron.zone)}"
    yield f"  next     {'paused' if cron.paused else _time(cron.next_at_ms)}"
    yield f"  rules    overlap {cron.overlap}, missed {cron.missed}, history {cron.history}"
    command_line = (cron.job or {}).get("command")
    if command_line:
        yield f"  runs     {clean(' '.join(command_line))}"
    if cron.skipped or cron.reason:
        reason = f": {clean(cron.reason)}" if cron.reason else ""
        yield f"  skipped  {cron.skipped}{reason}"
    for run in cron.runs:
        why = f"  {clean(run['reason'])}" if run.get("reason") else ""
        yield f"  {_time(run['at_ms'])}  job {run['job']}  {run['state']}{why}"
