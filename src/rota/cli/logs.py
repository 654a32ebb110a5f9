"""`rota logs`: what a job wrote, all of it or a part, now or as it comes."""

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
@click.option("-f", "--follow", is_flag=True, help="Go on until the tasks have ended.")
@click.option("--index", metavar="RANGES", help="These tasks only, as 3 or 1,3,5-8.")
@click.option("--attempt", type=click.IntRange(1), help="This attempt. [default: the newest]")
@click.option("--all-attempts", is_flag=True, help="Every attempt that is known, told apart by [#attempt].")
@click.option("--step", metavar="NAME", help="This step only, by name or number: what it has written so far.")
@click.option("--stdout", "stream", flag_value="stdout", help="Standard output only.")
@click.option("--stderr", "stream", flag_value="stderr", help="Standard error only, printed to stdout.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="The last N lines of each attempt only.")
@click.option("--since", metavar="WHEN", help="What came after: 10m ago, or 2026-12-01T08:00:00Z.")
@click.option("--until", metavar="WHEN", help="What came before, written in the same way.")
@click.option(
    "--from", "offset", type=click.IntRange(0), metavar="OFFSET", help="From this byte of one stream on."
)
@click.option("--timestamps", is_flag=True, help="In front of each line, when it had come.")
@click.option(
    "-o", "--output", type=click.Choice(["raw", "jsonl"]), default="raw", help="jsonl: a record per piece."
)
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, job: str, **flags: Any) -> None:
    """Print what a job wrote.

    JOB is an id, a name or `last`; 12.3 is task 3 of job 12. Standard output goes to
    stdout, standard error to stderr, in the order they came; the tasks of an array are told apart by [index].
    """
    ref, task_index = split_ref(job)
    _check(flags)
    found = cluster.job(ref)
    wanted = [*indices(flags["index"])] if flags["index"] is not None else [task_index]
    many = (found.status.count > 1 and wanted == [None]) or len(wanted) > 1
    if flags["offset"] is not None and many:
        raise click.UsageError("--from is a place in one stream of one task; name the task, as JOB.3")
    heads = LinePrefix(index=many, attempt=flags["all_attempts"], time=flags["timestamps"])
    printer = Printer(heads, single=flags["stream"] is not None)
    for one in wanted:
        for chunk in _chunks(cluster, found, one, flags):
            if flags["output"] == "jsonl":
                print_line(_record(chunk))
            else:
                printer.write(chunk)
    printer.close()


def _check(flags: dict[str, Any]) -> None:
    if flags["all_attempts"] and flags["attempt"] is not None:
        raise click.UsageError("--attempt names one, --all-attempts takes each; leave one of them out")
    if flags["until"] is not None and flags["follow"]:
        raise click.UsageError("--until shows what came before; leave -f out")
    if flags["offset"] is not None and flags["stream"] is None:
        raise click.UsageError("--from is a place in one stream; add --stdout or --stderr")
    if flags["step"] is not None and flags["follow"]:
        raise click.UsageError("--step shows what a step has written so far; leave -f out")
    unfit = [name for name in ("since", "until", "offset", "all_attempts") if flags[name]]
    if flags["step"] is not None and unfit:
        raise click.UsageError("--step shows all that a step has written, or its --tail; leave the rest out")


def _chunks(cluster: Cluster, job: Job, index: int | None, flags: dict[str, Any]) -> Iterator[Chunk]:
    stream, tail = flags["stream"], flags["tail"]
    if flags["step"] is not None:
        chunks = job.step_logs(flags["step"], index or 0, stream, flags["attempt"])
        return chunks if tail is None else _last(chunks, tail)
    attempt = "all" if flags["all_attempts"] else flags["attempt"]
    query = LogQuery(job.id, index, attempt, stream, flags["since"], flags["until"], tail, flags["offset"])
    return (follow_logs if flags["follow"] else read_logs)(cluster.transport, query, LogCursor())


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


def _record(chunk: Chunk) -> dict[str, object]:
    record: dict[str, object] = {"index": chunk.index, "attempt": chunk.attempt, "stream": chunk.stream}
    if chunk.is_gap:
        return record | {"offset": chunk.offset, "missing": chunk.missing, "reason": chunk.reason}
    if chunk.at_ms:
        record["at_ms"] = chunk.at_ms
    return record | {"offset": chunk.offset, "text": chunk.data.decode("utf-8", "replace")}
