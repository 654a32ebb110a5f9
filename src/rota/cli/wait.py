"""`rota wait`: until jobs have ended, over restarts of the server; returns their exit code."""

import click

from rota.cli.arguments import job_refs, seconds
from rota.cli.endings import describe_array, describe_single, exit_code
from rota.cli.ls import JOBS
from rota.cli.output import emit, output_option, tell
from rota.cli.session import WORKING_SECONDS, with_cluster
from rota.client.cluster import Cluster
from rota.client.job import Job


@click.command("wait")
@click.argument("jobs", nargs=-1, required=True)
@click.option(
    "--timeout", metavar="DURATION", help="Give up after this long, with exit code 124; jobs go on."
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
@output_option
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, jobs: tuple[str, ...], timeout: str | None, quiet: bool, output: str) -> int:
    """Wait for jobs and return their exit code.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8. With several jobs the exit code is
    that of the first one that did not succeed.
    """
    timeout_seconds = seconds(timeout, "--timeout")
    found = [cluster.job(ref) for ref in job_refs(jobs)]
    for job in found:
        if job.status.kind == "service" and not job.status.is_final and not quiet:
            tell(f"job {job.id} is a service: it ends when it is canceled, with rota cancel {job.id}")
        try:
            job.wait(timeout_seconds)
        except KeyboardInterrupt:
            tell(f"\njob {job.id} goes on: rota wait {job.id}")
            raise
        if not quiet:
            _tell_end(job)
    if output not in ("table", "wide"):
        emit(output, JOBS, [job.status for job in found])
    return next((code for job in found if (code := exit_code(job.status))), 0)


def _tell_end(job: Job) -> None:
    if job.status.count == 1:
        tell(f"job {job.id} {describe_single(job.status, None)}")
    else:
        tell(describe_array(job.status))
