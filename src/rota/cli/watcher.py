"""`rota watcher`: hold connections of agents for the leader; list and remove watchers."""

import importlib
from collections.abc import Sequence
from typing import Any

import click

from rota.cli.ui.arguments import seconds
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_age, format_duration
from rota.cli.ui.output import TableColumn, TableListing, emit, emit_one, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.server_views import Watcher
from rota.config.watcher import AGENT_ADDR, WatcherOptions

TOKEN_VALID = "30m"
WATCHERS: TableListing[Watcher] = TableListing(
    "watchers",
    [
        TableColumn("WATCHER", lambda watcher: watcher.id),
        TableColumn("NAME", lambda watcher: watcher.name),
        TableColumn("JOINED", lambda watcher: f"{format_age(watcher.joined_at_ms)} ago"),
    ],
    lambda watcher: watcher.id,
)


@click.group("watcher", invoke_without_command=True)
@click.option(
    "--join", metavar="LINE", help="The line printed by `rota watcher token`; needed only the first time."
)
@click.option("--config", "config_file", metavar="FILE", help="Settings in TOML.")
@click.option("--data-dir", metavar="DIR", help="Directory for the key and the certificate.")
@click.option("--name", help="The name of the watcher. [default: that of the machine]")
@click.option("--agent-addr", metavar="HOST:PORT", help=f"Listen address for agents. [default: {AGENT_ADDR}]")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Hold connections of agents for the leader, or list watchers."""
    if context.invoked_subcommand is not None:
        return 0
    # Imported late: the wiring imports most of Rota.
    return int(importlib.import_module("rota.wiring.watcher").run_watcher(WatcherOptions(**options)) or 0)


@command.command("token")
@click.option(
    "--valid", metavar="DURATION", default=TOKEN_VALID, show_default=True, help="Lifetime of the token."
)
@click.option(
    "--local", is_flag=True, help="For a watcher on this machine, if the server listens on loopback only."
)
@output_option
@with_cluster(WORKING_SECONDS)
def token(cluster: Cluster, *, valid: str, local: bool, output: str) -> None:
    """Print the command that makes a machine a watcher; it can be used once."""
    valid_seconds = seconds(valid, "--valid") or 0.0
    made = cluster.join_tokens.create(role="watcher", valid_seconds=valid_seconds, local=local or None)
    emit_one(output, made, made.token, lambda: [made.line])
    if output in ("table", "wide"):
        print_note(f"run this line on the machine (single use, valid for {format_duration(valid_seconds)})")


@command.command("ls")
@output_option
@with_cluster()
def list_watchers(cluster: Cluster, output: str) -> None:
    """List watchers that have joined."""
    emit(output, WATCHERS, cluster.watchers.list())


@command.command("delete")
@click.argument("watchers", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def delete(cluster: Cluster, watchers: Sequence[str]) -> None:
    """Remove watchers by id or name: they are refused, and their agents connect elsewhere."""
    for watcher in watchers:
        cluster.watchers.remove(watcher)
        print_note(f"watcher {clean(watcher)} is removed")
