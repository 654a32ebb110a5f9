"""`rota resume`: resume paused jobs."""

import click

from rota.cli.cancel import for_each
from rota.cli.ui.arguments import job_refs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import output_option, print_note
from rota.client.cluster import Cluster
from rota.client.job import Job


@click.command("resume")
@click.argument("jobs", nargs=-1, required=True)
@output_option
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, jobs: tuple[str, ...], output: str) -> int:
    """Resume paused jobs.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8.
    """

    def resume(job: Job) -> None:
        job.resume()
        print_note(f"job {job.id} “{clean(job.status.name)}”: {job.state}")

    return for_each(cluster, job_refs(jobs), resume, output).code
