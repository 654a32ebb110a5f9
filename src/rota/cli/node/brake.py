"""`rota node brake`: many nodes fell silent at once, and somebody knows whether they are gone."""

import click

from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.client.cluster import Cluster


@click.command("brake")
@click.argument("nodes", nargs=-1)
@click.option("--release", is_flag=True, help="These nodes, or all that are silent, are gone: go on.")
@output_option
@with_cluster(WORKING_SECONDS)
def brake(cluster: Cluster, nodes: tuple[str, ...], output: str, *, release: bool) -> None:
    """Show whether the work of nodes that fell silent together is started elsewhere.

    \b
    rota node brake
    rota node brake --release
    rota node brake --release node-1 node-2

    When 30 % of the nodes fall silent within a minute their work is started elsewhere slowly, when half
    of them do not at all: it may be the network, and they return with all they ran.
    Release it only if they are gone.
    """
    if nodes and not release:
        raise click.UsageError("nodes are named with --release only; rota node show NODE shows one")
    if not release:
        on = cluster.nodes.brake()
        emit_one(output, on, on.level, lambda: [clean(on.sentence)])
        return
    done = cluster.nodes.release_brake(*nodes)
    if output in ("table", "wide"):
        print_note(f"said to be gone: {clean(', '.join(done.released))}; the brake is {clean(done.sentence)}")
    else:
        emit_one(output, done, done.level, list)
