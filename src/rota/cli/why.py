"""`rota why`: every reason a job waits, counted over nodes, and the smallest change that would start it."""

from collections.abc import Iterator

import click

from rota.cli.output import emit_one, output_option
from rota.cli.session import with_cluster
from rota.cli.words import about_job, clean, split_ref
from rota.client.cluster import Cluster
from rota.client.views import Why


@click.command("why")
@click.argument("job")
@output_option
@with_cluster()
def command(cluster: Cluster, job: str, output: str) -> None:
    """Say why a job waits and what would start it.

    JOB is an id, the start of one, a name or `last`.
    """
    why = cluster.job(split_ref(job)[0]).why()
    emit_one(output, why, why.job, lambda: _lines(why))


def _lines(why: Why) -> Iterator[str]:
    yield about_job(why.job, why.sentence)
    told = [str(reason.get("text") or reason.get("kind") or "unknown") for reason in why.reasons]
    if len(told) > 1 or not all(text in why.sentence for text in told):  # else the sentence has said it
        yield from (f"  - {clean(text)}" for text in told)
    for change in why.changes:
        yield f"  → {clean(change)}"
    if why.position is not None:
        yield f"  place {why.position} in the queue"
