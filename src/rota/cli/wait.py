"""`rota wait`: wait until jobs have ended or a condition holds, across restarts of the server."""

import click

from rota.cli.ls import JOBS
from rota.cli.ui.arguments import job_refs, seconds
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.exit_codes import describe_array, describe_single, exit_code
from rota.cli.ui.output import emit, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.conditions import wait_for
from rota.client.job import Job

NOT_MET = 1


@click.command("wait")
@click.argument("jobs", nargs=-1, required=True)
@click.option(
    "--for",
    "condition",
    metavar="CONDITION",
    help="A state such as running, paused or succeeded, or an event such as task.retry. [default: ended]",
)
@click.option(
    "--any", "any_of", is_flag=True, help="Return when the condition holds for one job. [default: all jobs]"
)
@click.option(
    "--timeout",
    metavar="DURATION",
    help="Stop waiting after this time, with exit code 124; the jobs keep running.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
@output_option
@with_cluster(WORKING_SECONDS)
def command(
    cluster: Cluster,
    jobs: tuple[str, ...],
    *,
    condition: str | None,
    any_of: bool,
    timeout: str | None,
    quiet: bool,
    output: str,
) -> int:
    """Wait for jobs and return their exit code.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8. With several jobs the exit code is
    that of the first one that did not succeed. With --for it is 0 if the condition held, and 1 if it no
    longer can.
    """
    found = [cluster.job(ref) for ref in job_refs(jobs)]
    for job in found if condition is None and not quiet else ():
        if job.status.kind == "service" and not job.status.is_final:
            print_note(f"job {job.id} is a service: it ends only when it is canceled: rota cancel {job.id}")
    try:
        results = wait_for(
            cluster.transport,
            [job.id for job in found],
            condition or "ended",
            seconds(timeout, "--timeout"),
            any_of=any_of,
        )
    except KeyboardInterrupt:
        refs = " ".join(job.id for job in found)
        print_note(f"\njob {refs} keeps running: rota wait {refs}")
        raise
    # With --any the others are still unfinished, and have no exit code.
    waited = [job for job in found if job.id in results]
    for job in waited:
        job.refresh()
        if not quiet:
            _print_result(job, condition, results[job.id])
    if output not in ("table", "wide"):
        emit(output, JOBS, [job.status for job in waited])
    if condition is not None:
        return 0 if (any if any_of else all)(results.values()) else NOT_MET
    return next((code for job in waited if (code := exit_code(job.status))), 0)


def _print_result(job: Job, condition: str | None, held: bool) -> None:
    if condition is not None:
        print_note(
            f"job {job.id}: {condition}" if held else f"job {job.id}: {job.state}, without {condition}"
        )
    elif job.status.count == 1:
        print_note(f"job {job.id} {describe_single(job.status, None)}")
    else:
        print_note(describe_array(job.status))
