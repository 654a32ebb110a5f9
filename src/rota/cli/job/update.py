"""`rota job update` and `rota job rollback`: change the spec of a job that has not ended."""

from typing import Any

import click

from rota.cli.show import version_lines
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.cli.ui.spec_options import given_fields
from rota.client.cluster import Cluster
from rota.client.views import JobStatus


@click.command("update")
@click.argument("job")
@click.option("-f", "--file", metavar="FILE", help="Fields from a .toml, .yaml or .json file, or - (stdin).")
@click.option("--limit", multiple=True, metavar="NAME=N", help="memory=1g, cpu=2 or pids=100; repeatable.")
@click.option(
    "--env", multiple=True, metavar="K=V", help="An environment variable; the others stay; repeatable."
)
@click.option("--label", multiple=True, metavar="K=V", help="A label; the others stay; repeatable.")
@click.option("--priority", type=int, metavar="0-100", help="Higher goes first.")
@click.option(
    "--count",
    type=int,
    metavar="N",
    help="Number of tasks; scaling down stops those with the highest index.",
)
@click.option("--timeout", metavar="DURATION", help="Time limit per attempt, as 90s or 2h30m.")
@click.option("--grace", metavar="DURATION", help="Time between SIGTERM and SIGKILL.")
@click.option("--retry", type=int, metavar="N", help="How often a failed task is retried.")
@click.option("-c", "--cpu", metavar="CORES", help="Cores per task.")
@click.option("-m", "--memory", metavar="SIZE", help="Memory per task.")
@click.option("--image", metavar="IMAGE", help="Run in a container of this image.")
@click.option(
    "--if-version", type=click.IntRange(1), metavar="N", help="Only if the spec still has this version."
)
@click.option("--replace", is_flag=True, help="Replace running tasks by the new version.")
@click.option(
    "--max-parallel",
    type=click.IntRange(1),
    metavar="N",
    help="How many at a time; the next when the previous one runs, or is healthy. [default: 1]",
)
@click.option(
    "--rollout",
    multiple=True,
    metavar="NAME=VALUE",
    help="For a service: healthy=30s, deadline=5m, rollback=false; repeatable.",
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

    Limits, time limit, priority, retries, labels and count apply immediately, other fields from the next
    attempt of a task on. A new command is written after `--`. JOB is an id, a name or `last`.
    """
    changes = given_fields(flags, command)
    if not changes and not flags["replace"]:
        raise click.UsageError("nothing to change; write for example --priority 70 or --env K=V")
    found = cluster.job(job)
    terms = {name: flags[name] for name in ("if_version", "replace", "max_parallel")}
    status = found.update(changes, **terms)
    if output in ("table", "wide"):
        _print_changes(status)
    else:
        emit_one(output, status, status.id, lambda: iter(()))


@click.command("rollback")
@click.argument("job")
@output_option
@with_cluster(WORKING_SECONDS)
def rollback(cluster: Cluster, job: str, *, output: str) -> None:
    """Roll a service back to the version before its last update.

    Tasks are replaced as by an update.
    JOB is an id, a name or `last`.
    """
    status = cluster.job(job).rollback()
    if output in ("table", "wide"):
        print_note(f"job {status.id}: rolls back, as version {status.version}")
    else:
        emit_one(output, status, status.id, lambda: iter(()))


def _print_changes(status: JobStatus) -> None:
    now = status.changed.get("at_once") or ()
    later = status.changed.get("from_next_attempt") or ()
    if not now and not later:
        print_note(f"job {status.id}: unchanged, at version {status.version}")
        return
    print_note(f"job {status.id}: version {status.version}")
    if now:
        print_note(f"  immediately               {', '.join(now)}")
    if later:
        print_note(f"  from the next attempt on  {', '.join(later)}")
    for line in version_lines(status):
        print_note(f"  {line}")
