"""`rota why`: all reasons why a job waits, counted over nodes, and the smallest change that helps."""

import time
from collections.abc import Iterator

import click

from rota.cli.ui.connection import with_cluster
from rota.cli.ui.formats import about_job, clean, split_ref
from rota.cli.ui.output import emit_one, output_option
from rota.client.cluster import Cluster
from rota.client.views import Outlook, Why

DAY_SECONDS = 86_400


@click.command("why")
@click.argument("job")
@output_option
@with_cluster()
def command(cluster: Cluster, job: str, output: str) -> None:
    """Explain why a job waits and what would let it start.

    JOB is an id, a name or `last`.
    """
    why = cluster.job(split_ref(job)[0]).why()
    emit_one(output, why, why.job, lambda: [about_job(why.job, why.sentence), *reason_lines(why)])


def reason_lines(why: Why | Outlook) -> Iterator[str]:
    """The reasons and changes that the sentence does not already contain."""
    texts = [str(reason.get("text") or reason.get("kind") or "unknown") for reason in why.reasons]
    if len(texts) > 1 or not all(text in why.sentence for text in texts):
        yield from (f"  - {clean(text)}" for text in texts)
    if len({reason.get("text") for reason in why.reasons if reason.get("kind") != "queue"}) > 1:
        for miss in why.misses:
            lacks = "; ".join(str(reason) for reason in miss.get("lacks", ()))
            yield f"  ~ {clean(str(miss.get('node')))}: {clean(lacks)}"
    for change in why.changes:
        yield f"  → {clean(change)}"
    if why.position is not None:
        yield f"  place {why.position} in the queue" + (_start(why.starts_at_ms) if texts else "")


def _start(at_ms: int | None) -> str:
    if at_ms is None:
        return ", start unknown"
    seconds = at_ms / 1000 - time.time_ns() / 1e9
    pattern = "%H:%M" if seconds < DAY_SECONDS else "%Y-%m-%d %H:%M"
    return f", starts about {time.strftime(pattern, time.localtime(at_ms / 1000))}, in {_roughly(seconds)}"


def _roughly(seconds: float) -> str:
    """A rough duration in one unit: the start is only an estimate."""
    for unit, length in (("d", DAY_SECONDS), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{round(seconds / length)} {unit}"
    return f"{max(1, round(seconds))} s"
