"""`rota get`: list or download the files in the output directory of a job."""

from pathlib import Path

import click

from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_age, format_size, plural, split_ref
from rota.cli.ui.output import TableColumn, TableListing, emit, output_option, print_data, print_note
from rota.client.cluster import Cluster
from rota.client.outputs import get_outputs
from rota.client.views import Output

OUTPUTS: TableListing[Output] = TableListing(
    "outputs",
    [
        TableColumn("PATH", lambda output: output.path),
        TableColumn("SIZE", lambda output: format_size(output.bytes), right=True),
        TableColumn("AGE", lambda output: format_age(output.modified_at_ms), right=True),
    ],
    lambda output: output.path,
)


@click.command("get")
@click.argument("job")
@click.argument("paths", nargs=-1)
@click.option("--index", type=click.IntRange(0), help="The files of this task. [default: 0]")
@click.option(
    "-O", "--into", metavar="DIR", default=".", help="The local directory. [default: the current one]"
)
@click.option("--list", "names_only", is_flag=True, help="Only list the files.")
@output_option
@with_cluster(WORKING_SECONDS)
def command(cluster: Cluster, job: str, paths: tuple[str, ...], output: str, **flags: object) -> None:
    """Download the files in the ROTA_OUTPUT_DIR of a job.

    JOB is an id, a name or `last`; 12.3 is task 3 of job 12. PATHS are files,
    directories or patterns as '*.csv'; without any, all files are downloaded.
    """
    ref, task_index = split_ref(job)
    found = cluster.job(ref)
    index = int(str(flags["index"])) if flags["index"] is not None else task_index or 0
    if flags["names_only"]:
        emit(output, OUTPUTS, found.outputs(*paths, index=index))
        return
    into = Path(str(flags["into"]))
    count = 0
    for path in get_outputs(cluster.transport, found.id, index, paths, into):
        count += 1
        print_data(clean(str(path)))
    print_note(f"job {found.id}: {plural(count, 'file')} fetched into {into}")
