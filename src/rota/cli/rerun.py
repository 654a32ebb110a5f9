"""`rota rerun`: submit an ended job again, or only its tasks that did not succeed."""

import click

from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.client.cluster import Cluster


@click.command("rerun")
@click.argument("job")
@click.option("--failed", is_flag=True, help="Only the tasks that did not succeed; they keep their index.")
@click.option("--key", help="Idempotency key: two calls with the same key create one job.")
@output_option
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, job: str, failed: bool, key: str | None, output: str) -> None:
    """Submit an ended job again as a new one; do not wait.

    JOB is an id, a name or `last`.
    """
    old = cluster.job(job)
    again = old.rerun(failed=failed, key=key)
    left = again.status.count - again.status.counts.get("succeeded", 0)
    what = f"{left} of the {again.status.count} tasks of job {old.id}" if failed else f"job {old.id}"
    name = clean(again.status.name)
    print_note(f"job {again.id} “{name}” runs {what} again; wait for it: rota wait {again.id}")
    emit_one(output, again.status, again.id, lambda: iter((again.id,)))
