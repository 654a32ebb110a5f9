"""`rota logs`: what a job wrote, all of it or the end, now or as it comes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import click

from rota.cli.arguments import indices
from rota.cli.output import print_line
from rota.cli.printer import Printer
from rota.cli.session import WORKING_SECONDS, with_cluster
from rota.cli.words import split_ref
from rota.client.cluster import Cluster
from rota.client.streams import LogCursor, LogQuery, follow_logs, read_logs
from rota.client.views import Chunk


@click.command("logs")
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the tasks have ended.")
@click.option("--index", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8.")
@click.option("--attempt", type=click.IntRange(1), help="This attempt. [default: the newest]")
@click.option("--step", metavar="NAME", help="This step only, by name or number: what it has written so far.")
@click.option("--stdout", "stream", flag_value="stdout", help="Standard output only.")
@click.option("--stderr", "stream", flag_value="stderr", help="Standard error only, printed to stdout.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="The last N lines of each task only.")
@click.option(
    "-o", "--output", type=click.Choice(["raw", "jsonl"]), default="raw", help="jsonl: a record per piece."
)
@with_cluster(WORKING_SECONDS)
def command(
    cluster: Cluster, job: str, index: str | None, follow: bool, tail: int | None, **which: str | None
) -> None:
    """Print what a job wrote.

    JOB is an id, the start of one, a name or `last`; 12.3 is task 3 of job 12. Standard output goes to
    stdout, standard error to stderr; the tasks of an array are told apart by [index].
    """
    ref, task_index = split_ref(job)
    found = cluster.job(ref)
    wanted = [*indices(index)] if index is not None else [task_index]
    stream = which["stream"]
    many = (found.status.count > 1 and wanted == [None]) or len(wanted) > 1
    printer = Printer(prefix=many, single=stream is not None)
    for one in wanted:
        attempt = _number(which["attempt"])
        if which["step"] is not None:
            if follow:
                raise click.UsageError("--step shows what a step has written so far; leave -f out")
            read = found.step_logs(which["step"], one or 0, stream, attempt)
            chunks = read if tail is None else _last(read, tail)
        else:
            chunks = _chunks(cluster, LogQuery(found.id, one, attempt, stream), follow=follow, tail=tail)
        for chunk in chunks:
            if which["output"] == "jsonl":
                print_line(_record(chunk))
            else:
                printer.write(chunk)
    printer.close()


def _chunks(cluster: Cluster, query: LogQuery, *, follow: bool, tail: int | None) -> Iterator[Chunk]:
    cursor = LogCursor()
    if tail is not None:
        yield from _last(read_logs(cluster.transport, query, cursor), tail)
    elif not follow:
        yield from read_logs(cluster.transport, query, cursor)
    if follow:
        yield from follow_logs(cluster.transport, query, cursor)


def _last(chunks: Iterator[Chunk], count: int) -> Iterator[Chunk]:
    """The last lines of each task, both streams together, in the order they came."""
    kept: dict[int, deque[Chunk]] = {}
    for chunk in chunks:
        lines = kept.setdefault(chunk.index, deque(maxlen=count))
        if chunk.is_gap:
            lines.append(chunk)
        for line in chunk.data.splitlines(keepends=True):
            before = lines[-1] if lines else None
            if before and before.stream == chunk.stream and before.data and not before.data.endswith(b"\n"):
                lines[-1] = replace(before, data=before.data + line)
            else:
                lines.append(replace(chunk, data=line))
    for lines in kept.values():
        yield from lines


def _number(value: str | int | None) -> int | None:
    return None if value is None else int(value)


def _record(chunk: Chunk) -> dict[str, object]:
    record: dict[str, object] = {"index": chunk.index, "attempt": chunk.attempt, "stream": chunk.stream}
    if chunk.is_gap:
        return record | {"offset": chunk.offset, "missing": chunk.missing, "reason": chunk.reason}
    if chunk.at_ms:
        record["at_ms"] = chunk.at_ms
    return record | {"offset": chunk.offset, "text": chunk.data.decode("utf-8", "replace")}
