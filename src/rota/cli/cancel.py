"""`rota cancel`: cancel jobs or some of their tasks, and optionally wait for their end."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from rota.cli.ls import JOBS
from rota.cli.main import print_error
from rota.cli.ui.arguments import indices, job_refs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import emit, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.errors import Rejected
from rota.client.job import Job


class BulkResult(NamedTuple):
    """The outcome of an action on several jobs."""

    jobs: list[Job]  # for which it succeeded
    code: int  # exit code of the first failure, or 0


@click.command("cancel")
@click.argument("jobs", nargs=-1, required=True)
@click.option("--task", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8; the others keep running.")
@click.option("--reason", help="The reason; shown with the job.")
@click.option("--wait", is_flag=True, help="Return when the jobs have ended.")
@output_option
@with_cluster(WORKING_SECONDS)
def command(
    cluster: Cluster, jobs: tuple[str, ...], *, task: str | None, reason: str | None, wait: bool, output: str
) -> int:
    """Cancel jobs.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8.
    """
    chosen = [] if task is None else indices(task, "--task")

    def cancel(job: Job) -> None:
        job.cancel(reason, indices=chosen)
        print_note(
            f"job {job.id} “{clean(job.status.name)}”: " + (f"task {task} canceled" if task else job.state)
        )
        if wait:
            job.wait()
            print_note(f"job {job.id}: {job.state}")

    return for_each(cluster, job_refs(jobs), cancel, output).code


def for_each(cluster: Cluster, refs: Sequence[str], act: Callable[[Job], None], output: str) -> BulkResult:
    """Apply an action to each job; a failure is printed and does not stop the others."""
    done: list[Job] = []
    code = 0
    for ref in refs:
        try:
            job = cluster.job(ref)
            act(job)
            done.append(job)
        # Only refusals are per job. An unreachable server would refuse all of them, and ends the command.
        except Rejected as error:
            print_error(error.code, f"{ref}: {error}", error.hint)
            code = code or error.exit_code
    if output not in ("table", "wide"):
        emit(output, JOBS, [job.status for job in done])
    return BulkResult(done, code)
