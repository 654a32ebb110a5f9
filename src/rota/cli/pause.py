"""`rota pause`: start no more tasks of jobs."""

import click

from rota.cli.cancel import for_each
from rota.cli.ui.arguments import job_refs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import output_option, print_note
from rota.client.cluster import Cluster
from rota.client.job import Job


@click.command("pause")
@click.argument("jobs", nargs=-1, required=True)
@click.option(
    "--stop",
    is_flag=True,
    help="Also stop running tasks; they are started again after the pause and use up no retry.",
)
@output_option
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, jobs: tuple[str, ...], stop: bool, output: str) -> int:
    """Start no more tasks of jobs.

    Running tasks go on. JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8.
    """

    def pause(job: Job) -> None:
        job.pause(stop=stop)
        print_note(f"job {job.id} “{clean(job.status.name)}”: {job.state}; resume it: rota resume {job.id}")

    return for_each(cluster, job_refs(jobs), pause, output).code
