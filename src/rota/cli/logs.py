"""`rota logs`: print the output of a job, all or a part of it, so far or as it is written."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from rota.cli.ui.arguments import indices
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import split_ref
from rota.cli.ui.output import print_line
from rota.cli.ui.printer import LinePrefix, Printer
from rota.client.cluster import Cluster
from rota.client.job import Job
from rota.client.streams import LogCursor, LogQuery, follow_logs, read_logs
from rota.client.views import Chunk


@click.command("logs")
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the tasks have ended.")
@click.option("--index", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8.")
@click.option("--attempt", type=click.IntRange(1), help="This attempt. [default: the newest]")
@click.option("--all-attempts", is_flag=True, help="Every known attempt, marked by [#attempt].")
@click.option("--step", metavar="NAME", help="Output so far of this step only, by name or number.")
@click.option("--stdout", "stream", flag_value="stdout", help="Standard output only.")
@click.option("--stderr", "stream", flag_value="stderr", help="Standard error only, printed to stdout.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="The last N lines of each attempt only.")
@click.option("--since", metavar="WHEN", help="Output after this time: 10m ago, or 2026-12-01T08:00:00Z.")
@click.option("--until", metavar="WHEN", help="Output before this time, in the same format.")
@click.option(
    "--from", "offset", type=click.IntRange(0), metavar="OFFSET", help="Start at this byte of one stream."
)
@click.option("--timestamps", is_flag=True, help="Prefix each line with the time at which it was written.")
@click.option(
    "-o", "--output", type=click.Choice(["raw", "jsonl"]), default="raw", help="jsonl: one record per chunk."
)
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, job: str, **flags: Any) -> None:
    """Print the output of a job.

    JOB is an id, a name or `last`; 12.3 is task 3 of job 12. Standard output goes to
    stdout, standard error to stderr, in the order of writing; the tasks of an array are marked by [index].
    """
    ref, task_index = split_ref(job)
    _check(flags)
    found = cluster.job(ref)
    chosen = [*indices(flags["index"])] if flags["index"] is not None else [task_index]
    many = (found.status.count > 1 and chosen == [None]) or len(chosen) > 1
    if flags["offset"] is not None and many:
        raise click.UsageError("--from is a position in one stream of one task; name the task, as JOB.3")
    prefix = LinePrefix(index=many, attempt=flags["all_attempts"], time=flags["timestamps"])
    printer = Printer(prefix, single=flags["stream"] is not None)
    for index in chosen:
        for chunk in _chunks(cluster, found, index, flags):
            if flags["output"] == "jsonl":
                print_line(_record(chunk))
            else:
                printer.write(chunk)
    printer.close()


def _check(flags: dict[str, Any]) -> None:
    if flags["all_attempts"] and flags["attempt"] is not None:
        raise click.UsageError("--attempt and --all-attempts exclude each other")
    if flags["until"] is not None and flags["follow"]:
        raise click.UsageError("--until and -f exclude each other")
    if flags["offset"] is not None and flags["stream"] is None:
        raise click.UsageError("--from is a position in one stream; add --stdout or --stderr")
    if flags["step"] is not None and flags["follow"]:
        raise click.UsageError("--step and -f exclude each other")
    unfit = [name for name in ("since", "until", "offset", "all_attempts") if flags[name]]
    if flags["step"] is not None and unfit:
        raise click.UsageError("--step can only be combined with --tail")


def _chunks(cluster: Cluster, job: Job, index: int | None, flags: dict[str, Any]) -> Iterator[Chunk]:
    stream, tail = flags["stream"], flags["tail"]
    if flags["step"] is not None:
        chunks = job.step_logs(flags["step"], index or 0, stream, flags["attempt"])
        return chunks if tail is None else _last(chunks, tail)
    attempt = "all" if flags["all_attempts"] else flags["attempt"]
    query = LogQuery(job.id, index, attempt, stream, flags["since"], flags["until"], tail, flags["offset"])
    return (follow_logs if flags["follow"] else read_logs)(cluster.transport, query, LogCursor())


def _last(chunks: Iterator[Chunk], count: int) -> Iterator[Chunk]:
    """The last lines of each task, both streams together, in the order of writing."""
    kept: dict[int, deque[Chunk]] = {}
    for chunk in chunks:
        lines = kept.setdefault(chunk.index, deque(maxlen=count))
        if chunk.is_gap:
            lines.append(chunk)
        for line in chunk.data.splitlines(keepends=True):
            before = lines[-1] if lines else None
            # A line may be split between two chunks of its stream; counted as two it
            # would push out another line.
            if before and before.stream == chunk.stream and before.data and not before.data.endswith(b"\n"):
                lines[-1] = replace(before, data=before.data + line)
            else:
                lines.append(replace(chunk, data=line))
    for lines in kept.values():
        yield from lines


def _record(chunk: Chunk) -> dict[str, object]:
    record: dict[str, object] = {"index": chunk.index, "attempt": chunk.attempt, "stream": chunk.stream}
    if chunk.is_gap:
        return record | {"offset": chunk.offset, "missing": chunk.missing, "reason": chunk.reason}
    if chunk.at_ms:
        record["at_ms"] = chunk.at_ms
    return record | {"offset": chunk.offset, "text": chunk.data.decode("utf-8", "replace")}
