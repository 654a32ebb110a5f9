"""`rota job`: the verbs on jobs once more, and forgetting ended ones."""

import click

from rota.cli import cancel, ls, show
from rota.cli.arguments import job_refs
from rota.cli.output import tell
from rota.cli.session import WORKING_SECONDS, with_cluster
from rota.client.cluster import Cluster


@click.group("job")
def command() -> None:
    """List, show, cancel and delete jobs."""


command.add_command(ls.command)
command.add_command(show.command)
command.add_command(cancel.command)


@command.command("delete")
@click.argument("jobs", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, jobs: tuple[str, ...]) -> None:
    """Forget ended jobs, their tasks and their output.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8.
    """
    for ref in job_refs(jobs):
        job = cluster.job(ref)
        job.delete()
        tell(f"job {job.id}: deleted")
