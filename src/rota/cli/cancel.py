"""`rota cancel`: ask for jobs to end, and wait for it if wished."""

import click

from rota.cli.arguments import job_refs
from rota.cli.ls import JOBS
from rota.cli.main import tell_error
from rota.cli.output import emit, output_option, tell
from rota.cli.session import WORKING_SECONDS, with_cluster
from rota.cli.words import clean
from rota.client.cluster import Cluster
from rota.client.errors import Rejected
from rota.client.job import Job


@click.command("cancel")
@click.argument("jobs", nargs=-1, required=True)
@click.option("--reason", help="Why; shown to whoever asks about the job.")
@click.option("--wait", is_flag=True, help="Return when the jobs have ended.")
@output_option
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, jobs: tuple[str, ...], reason: str | None, wait: bool, output: str) -> int:
    """Cancel jobs.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8.
    """
    canceled: list[Job] = []
    code = 0
    for ref in job_refs(jobs):
        try:
            job = cluster.job(ref)
            job.cancel(reason)
            canceled.append(job)
            tell(f"job {job.id} “{clean(job.status.name)}”: {job.state}")
        except Rejected as error:  # the others are to be canceled all the same
            tell_error(error.code, f"{ref}: {error}", error.hint)
            code = code or error.exit_code
    for job in canceled if wait else []:
        job.wait()
        tell(f"job {job.id}: {job.state}")
    if output not in ("table", "wide"):
        emit(output, JOBS, [job.status for job in canceled])
    return code
