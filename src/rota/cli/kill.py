"""`rota kill`: end jobs without a grace period, or send a signal to their running tasks."""

import click

from rota.cli.cancel import for_each
from rota.cli.ui.arguments import indices, job_refs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import output_option, print_note
from rota.client.cluster import Cluster
from rota.client.job import Job


@click.command("kill")
@click.argument("jobs", nargs=-1, required=True)
@click.option("--task", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8. [default: all]")
@click.option(
    "--signal", metavar="NAME", help="Send this signal to running tasks, as HUP or USR1. [default: KILL]"
)
@output_option
@with_cluster(WORKING_SECONDS)
def command(
    cluster: Cluster, jobs: tuple[str, ...], task: str | None, signal: str | None, output: str
) -> int:
    """Cancel jobs without a grace period, or send a signal.

    JOBS are ids, starts of ids, names, `last`, or ranges as 1,3,5-8.
    """
    chosen = [] if task is None else indices(task, "--task")

    def kill(job: Job) -> None:
        job.kill(signal, indices=chosen)
        survives = signal is not None and signal.upper().removeprefix("SIG") not in ("KILL", "9")
        outcome = (
            f"task {task} killed, and started again" if task and job.status.kind != "batch" else job.state
        )
        print_note(f"job {job.id} “{clean(job.status.name)}”: {f'{signal} sent' if survives else outcome}")

    return for_each(cluster, job_refs(jobs), kill, output).code
