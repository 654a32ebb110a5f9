"""`rota job`: all commands on jobs, including those that have no short form at the top level."""

import click

from rota.cli import cancel, kill, ls, pause, resume, show
from rota.cli.job.update import rollback, update
from rota.cli.ui.arguments import indices, job_refs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, split_ref
from rota.cli.ui.output import print_note
from rota.client.cluster import Cluster


@click.group("job")
def command() -> None:
    """List, show, change, restart, move, release, cancel and delete jobs."""


command.add_command(ls.command)
command.add_command(show.command)
command.add_command(cancel.command)
command.add_command(kill.command)
command.add_command(pause.command)
command.add_command(resume.command)
command.add_command(update)
command.add_command(rollback)


@command.command("restart")
@click.argument("job")
@click.option(
    "--index", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8. [default: all running ones]"
)
@with_cluster(WORKING_SECONDS)
def restart(cluster: Cluster, job: str, index: str | None) -> None:
    """Stop running tasks and start them again; uses up no retry.

    JOB is an id, a name or `last`; 12.3 is task 3 of job 12.
    """
    ref, task_index = split_ref(job)
    found = cluster.job(ref)
    chosen = indices(index) if index is not None else [] if task_index is None else [task_index]
    found.restart(*chosen)
    print_note(f"job {found.id}: {'all running tasks' if not chosen else 'these tasks'} are restarted")


@command.command("move")
@click.argument("job")
@click.option("--index", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8. [default: all on a node]")
@click.option("--to", metavar="NODE", help="The node to move to.")
@click.option("--away", is_flag=True, help="To any other node. [default]")
@with_cluster(WORKING_SECONDS)
def move(cluster: Cluster, job: str, index: str | None, to: str | None, away: bool) -> None:
    """Stop tasks and start them on another node; uses up no retry.

    Refused, with the reasons, if they do not fit there now. JOB is an id, a name or `last`; 12.3 is
    task 3 of job 12.
    """
    if to is not None and away:
        raise click.UsageError("--to and --away exclude each other")
    ref, task_index = split_ref(job)
    found = cluster.job(ref)
    chosen = indices(index) if index is not None else [] if task_index is None else [task_index]
    found.move(*chosen, to=to)
    what = "all its tasks" if not chosen else "these tasks"
    print_note(f"job {found.id}: {what} move {'to another node' if to is None else f'to {clean(to)}'}")


@command.command("release")
@click.argument("job")
@click.option(
    "--index",
    "--task",
    metavar="RANGES",
    help="These tasks only, as 3 or 1,3,5-8. [default: all that are held]",
)
@with_cluster(WORKING_SECONDS)
def release(cluster: Cluster, job: str, index: str | None) -> None:
    """Release tasks that are held because nodes went down while they ran.

    JOB is an id, a name or `last`; 12.3 is task 3 of job 12.
    """
    ref, task_index = split_ref(job)
    found = cluster.job(ref)
    chosen = indices(index) if index is not None else [] if task_index is None else [task_index]
    found.release(*chosen)
    print_note(f"job {found.id}: {'all held tasks' if not chosen else 'these tasks'} may start again")


@command.command("resolve")
@click.argument("job")
@click.argument("word", metavar="again|fail|cancel|lost")
@click.option(
    "--index",
    "--task",
    metavar="RANGES",
    help="These tasks only, as 3 or 1,3,5-8. [default: all that wait for a decision]",
)
@with_cluster(WORKING_SECONDS)
def resolve(cluster: Cluster, job: str, word: str, index: str | None) -> None:
    """Decide, in place of the recovery controller of a job, on tasks that were lost with their node.

    again starts them again; fail, cancel and lost are final states.
    JOB is an id, a name or `last`; 12.3 is task 3 of job 12.
    """
    ref, task_index = split_ref(job)
    found = cluster.job(ref)
    chosen = indices(index) if index is not None else [] if task_index is None else [task_index]
    found.resolve(word, *chosen)
    print_note(f"job {found.id}: {word} for {'all lost tasks' if not chosen else 'these tasks'}")


@command.command("delete")
@click.argument("jobs", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, jobs: tuple[str, ...]) -> None:
    """Delete ended jobs, their tasks and their output.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8.
    """
    for ref in job_refs(jobs):
        job = cluster.job(ref)
        job.delete()
        print_note(f"job {job.id}: deleted")
