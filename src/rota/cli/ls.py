"""`rota ls`: list jobs, newest first."""

import gc
from itertools import chain, islice

import click

from rota.cli.ui.connection import with_cluster
from rota.cli.ui.formats import format_age
from rota.cli.ui.output import TableColumn, TableListing, emit, output_option, print_note
from rota.cli.ui.read_ahead import read_ahead
from rota.cli.ui.service_format import done
from rota.client.cluster import Cluster
from rota.client.context import setting
from rota.client.views import JobStatus

SHOWN = 20
FIELDS = "id,name,state,count,done,submitted_at_ms,sentence"  # those of the columns below
FIELDS_WIDE = f"{FIELDS},namespace,user,priority,exit_code"

JOBS: TableListing[JobStatus] = TableListing(
    "jobs",
    [
        TableColumn("JOB", lambda job: job.id),
        TableColumn("NAME", lambda job: job.name),
        TableColumn("STATE", lambda job: job.state),
        TableColumn("DONE", done, right=True),
        TableColumn("AGE", lambda job: format_age(job.submitted_at_ms), right=True),
        TableColumn("NAMESPACE", lambda job: job.namespace, wide=True),
        TableColumn("USER", lambda job: job.user or "-", wide=True),
        TableColumn("PRIORITY", lambda job: job.priority, wide=True, right=True),
        TableColumn(
            "EXIT", lambda job: "-" if job.exit_code is None else job.exit_code, wide=True, right=True
        ),
        TableColumn("STATUS", lambda job: job.sentence),
    ],
    lambda job: job.id,
)


@click.command("ls")
@click.option("-a", "--all", "everything", is_flag=True, help="All jobs, without a limit.")
@click.option("--state", metavar="STATE", help="active, ended, or one state such as failed.")
@click.option("--name", help="Jobs of this name only.")
@click.option("--namespace", help="Jobs of this namespace only. [default: ROTA_NAMESPACE, or all]")
@click.option("--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="At most this many.")
@output_option
@with_cluster()
def command(cluster: Cluster, output: str, everything: bool, limit: int, **query: str | None) -> None:
    """List jobs, newest first."""
    query["namespace"] = setting("namespace", query["namespace"]).value
    fields = {"table": FIELDS, "wide": FIELDS_WIDE, "id": "id"}.get(output)
    # A long list contains no garbage, and the collector took half of the time.
    gc.disable()
    try:
        jobs = chain.from_iterable(
            read_ahead(cluster.job_pages(None if everything else limit, fields, **query))
        )
        first = list(islice(jobs, 1))
        if not first and output in ("table", "wide"):
            print_note("no jobs; submit one: rota run -- echo hello")
            return
        shown = emit(output, JOBS, chain(first, jobs))
    finally:
        gc.enable()
    if output in ("table", "wide") and not everything and shown == limit:
        print_note(f"the newest {limit}; -a shows all")
