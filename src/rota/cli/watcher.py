"""`rota watcher`: hold connections of agents for the leader; and which watchers there are."""

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
        TableColumn("WATCHER", lambda one: one.id),
        TableColumn("NAME", lambda one: one.name),
        TableColumn("JOINED", lambda one: f"{format_age(one.joined_at_ms)} ago"),
    ],
    lambda one: one.id,
)


@click.group("watcher", invoke_without_command=True)
@click.option("--join", metavar="LINE", help="What `rota watcher token` printed; needed the first time only.")
@click.option("--config", "config_file", metavar="FILE", help="Settings in TOML.")
@click.option("--data-dir", metavar="DIR", help="Where to keep the key and the certificate.")
@click.option("--name", help="The watcher's name. [default: the machine's]")
@click.option("--agent-addr", metavar="HOST:PORT", help=f"For agents. [default: {AGENT_ADDR}]")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Hold connections of agents for the leader, or show watchers."""
    if context.invoked_subcommand is not None:
        return 0
    # Late: the wiring imports most of Rota.
    return int(importlib.import_module("rota.wiring.watcher").run_watcher(WatcherOptions(**options)) or 0)


@command.command("token")
@click.option(
    "--valid", metavar="DURATION", default=TOKEN_VALID, show_default=True, help="How long it may be used."
)
@click.option(
    "--local", is_flag=True, help="For a watcher on this machine, where the server listens on loopback."
)
@output_option
@with_cluster(WORKING_SECONDS)
def token(cluster: Cluster, *, valid: str, local: bool, output: str) -> None:
    """Print the line that makes a machine a watcher; it can be used once."""
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
    """Remove watchers, by id or name: they are refused from then on, and their agents call elsewhere."""
    for one in watchers:
        cluster.watchers.remove(one)
        print_note(f"watcher {clean(one)} is removed")
