"""`rota node brake`: show or release the brake on restarting tasks of nodes that fell silent together."""

import click

from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.client.cluster import Cluster


@click.command("brake")
@click.argument("nodes", nargs=-1)
@click.option("--release", is_flag=True, help="Confirm that these nodes, or all silent ones, are lost.")
@output_option
@with_cluster(WORKING_SECONDS)
def brake(cluster: Cluster, nodes: tuple[str, ...], output: str, *, release: bool) -> None:
    """Show whether tasks of nodes that fell silent together are restarted elsewhere.

    \b
    rota node brake
    rota node brake --release
    rota node brake --release node-1 node-2

    If 30 % of the nodes fall silent within a minute, their tasks are restarted elsewhere slowly; if half of
    them do, not at all: it may be the network, and the nodes may return with their tasks still running.
    Release the brake only if the nodes are lost.
    """
    if nodes and not release:
        raise click.UsageError("nodes can only be given with --release; rota node show NODE shows one")
    if not release:
        status = cluster.nodes.brake()
        emit_one(output, status, status.level, lambda: [clean(status.sentence)])
        return
    done = cluster.nodes.release_brake(*nodes)
    if output in ("table", "wide"):
        print_note(
            f"confirmed as lost: {clean(', '.join(done.released))}; the brake is {clean(done.sentence)}"
        )
    else:
        emit_one(output, done, done.level, list)
