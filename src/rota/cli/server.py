"""`rota server`: the control plane."""

import importlib

import click

from rota.config import STORES, ServerOptions


@click.command("server")
@click.option(
    "--config", "config_file", metavar="FILE", help="Settings in TOML; `rota config check` tries them."
)
@click.option("--data-dir", metavar="DIR", help="Where to keep jobs, certificates and tokens.")
@click.option(
    "--store",
    metavar="STORE",
    help=f"Where jobs are kept: {', '.join(STORES)} or etcd://HOST:PORT,... [default: sqlite]",
)
@click.option("--name", help="The cluster's name. [default: default]")
@click.option("--http-addr", metavar="HOST:PORT", help="For users. [default: 127.0.0.1:3000]")
@click.option("--grpc-addr", metavar="HOST:PORT", help="For controllers. [default: 127.0.0.1:50000]")
@click.option("--agent-addr", metavar="HOST:PORT", help="For agents. [default: 127.0.0.1:50001]")
def command(**options: str | None) -> int:
    """Start the control plane.

    Off loopback everything speaks TLS; plain text is refused there.
    """
    # Late: the wiring imports all of Rota.
    return int(importlib.import_module("rota.wiring").run_server(ServerOptions(**options)) or 0)
