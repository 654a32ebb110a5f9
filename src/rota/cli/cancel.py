"""`rota cancel`: ask for jobs, or tasks of them, to end, and wait for it if wished."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from rota.cli.ls import JOBS
from rota.cli.main import tell_error
from rota.cli.ui.arguments import indices, job_refs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import emit, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.errors import Rejected
from rota.client.job import Job


class BulkResult(NamedTuple):
    jobs: list[Job]  # those for which it was
    code: int  # of the first for which it was not


@click.command("cancel")
@click.argument("jobs", nargs=-1, required=True)
@click.option("--task", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8; the others go on.")
@click.option("--reason", help="Why; shown to whoever asks about the job.")
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
    """What cannot be done for one is told, and done for the others all the same."""
    done: list[Job] = []
    code = 0
    for ref in refs:
        try:
            job = cluster.job(ref)
            act(job)
            done.append(job)
        except Rejected as error:
            tell_error(error.code, f"{ref}: {error}", error.hint)
            code = code or error.exit_code
    if output not in ("table", "wide"):
        emit(output, JOBS, [job.status for job in done])
    return BulkResult(done, code)
