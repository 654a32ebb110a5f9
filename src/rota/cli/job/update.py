"""`rota job update`: fields of a job that has not ended, given anew."""

from typing import Any

import click

from rota.cli.show import version_lines
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.cli.ui.spec_options import fields_said
from rota.client.cluster import Cluster
from rota.client.views import JobStatus


@click.command("update")
@click.argument("job")
@click.option("-f", "--file", metavar="FILE", help="Fields from a .toml, .yaml or .json file, or - (stdin).")
@click.option("--limit", multiple=True, metavar="NAME=N", help="memory=1g, cpu=2 or pids=100; repeatable.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable; the others stay; repeatable.")
@click.option("--label", multiple=True, metavar="K=V", help="A label; the others stay; repeatable.")
@click.option("--priority", type=int, metavar="0-100", help="Higher goes first.")
@click.option(
    "--count",
    type=int,
    metavar="N",
    help="Number of tasks; of fewer those with the highest numbers are stopped.",
)
@click.option("--timeout", metavar="DURATION", help="Time limit per attempt, as 90s or 2h30m.")
@click.option("--grace", metavar="DURATION", help="Time between SIGTERM and SIGKILL.")
@click.option("--retry", type=int, metavar="N", help="How often a failed task is tried again.")
@click.option("-c", "--cpu", metavar="CORES", help="Cores per task.")
@click.option("-m", "--memory", metavar="SIZE", help="Memory per task.")
@click.option("--image", metavar="IMAGE", help="Run in a container of this image.")
@click.option(
    "--if-version", type=click.IntRange(1), metavar="N", help="Only if its spec is at this version still."
)
@click.option("--replace", is_flag=True, help="What runs an older version is stopped, and tried again.")
@click.option(
    "--max-parallel",
    type=click.IntRange(1),
    metavar="N",
    help="So many of them at one time; the next when the former runs again, or is well. [default: 1]",
)
@click.option(
    "--rollout",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of a service: healthy=30s, deadline=5m, rollback=false; repeatable.",
)
@output_option
@click.argument("command", nargs=-1)
@with_cluster(WORKING_SECONDS)
def update(
    cluster: Cluster,
    job: str,
    command: tuple[str, ...],
    *,
    output: str,
    **flags: Any,
) -> None:
    """Change a job that has not ended.

    Limits, time limit, priority, retries, labels and count hold at once, all else from a task's next attempt
    on. A new command is written behind `--`. JOB is an id, a name or `last`.
    """
    wanted = fields_said(flags, command)
    if not wanted and not flags["replace"]:
        raise click.UsageError("there is nothing to change; write --priority 70, --env K=V or the like")
    found = cluster.job(job)
    terms = {name: flags[name] for name in ("if_version", "replace", "max_parallel")}
    status = found.update(wanted, **terms)
    if output in ("table", "wide"):
        _tell(status)
    else:
        emit_one(output, status, status.id, lambda: iter(()))


@click.command("rollback")
@click.argument("job")
@output_option
@with_cluster(WORKING_SECONDS)
def rollback(cluster: Cluster, job: str, *, output: str) -> None:
    """Let a service go back to the version before its last update.

    It goes the same way as an update that replaces what runs.
    JOB is an id, a name or `last`.
    """
    status = cluster.job(job).rollback()
    if output in ("table", "wide"):
        print_note(f"job {status.id}: goes back, as version {status.version}")
    else:
        emit_one(output, status, status.id, lambda: iter(()))


def _tell(status: JobStatus) -> None:
    at_once, later = status.changed.get("at_once") or (), status.changed.get("from_next_attempt") or ()
    if not at_once and not later:
        print_note(f"job {status.id}: is so already, at version {status.version}")
        return
    print_note(f"job {status.id}: version {status.version}")
    if at_once:
        print_note(f"  at once                   {', '.join(at_once)}")
    if later:
        print_note(f"  from the next attempt on  {', '.join(later)}")
    for line in version_lines(status):
        print_note(f"  {line}")
