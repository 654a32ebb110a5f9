"""`rota version`: the version of this client, and of the server if it answers."""

import click

from rota import __version__
from rota.cli.ui.output import output_option, print_data, print_json, print_line
from rota.client.cluster import Cluster
from rota.client.context import resolve
from rota.client.errors import RotaError
from rota.client.server_views import Server


@click.command("version")
@click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
@click.option("--context", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]")
@output_option
def command(addr: str | None, context: str | None, output: str) -> None:
    """Print the versions of client and server."""
    server, problem = None, ""
    try:
        server = _server(addr, context)
    except RotaError as error:
        problem = str(error)
    record = {"client": __version__, "server": server.raw if server else None}
    if output in ("json", "jsonl"):
        (print_json if output == "json" else print_line)(record)
        return
    if output == "id":
        print_data(__version__)
    else:
        print_data(f"client  {__version__}")
        print_data(
            f"server  {server.version}   epoch {server.epoch}   store {server.store}"
            if server
            else f"server  {problem}"
        )


def _server(addr: str | None, context: str | None) -> Server:
    # No retries: that no server answers is a result of this command.
    with Cluster(resolve(addr, None, context), patience_seconds=0.0) as cluster:
        return cluster.server.status()
