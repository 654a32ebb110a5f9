"""`rota node token`: create, list and revoke join tokens."""

from collections.abc import Sequence
from typing import Any

import click

from rota.cli.ui.arguments import pairs, seconds
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_age, format_duration
from rota.cli.ui.node_format import labels
from rota.cli.ui.output import TableColumn, TableListing, emit, emit_one, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.server_views import ListedJoinToken

TOKEN_VALID = "30m"
TOKENS: TableListing[ListedJoinToken] = TableListing(
    "join_tokens",
    [
        TableColumn("TOKEN", lambda token: token.id),
        TableColumn("STATE", lambda token: token.state),
        TableColumn("FOR", lambda token: token.role),
        TableColumn("CLUSTER", lambda token: token.cluster),
        TableColumn("LABELS", lambda token: labels(token.labels)),
        TableColumn("FROM", lambda token: ", ".join(token.addresses) or "-"),
        TableColumn("MADE", lambda token: f"{format_age(token.made_at_ms)} ago"),
        TableColumn("USED BY", lambda token: token.used_by or "-"),
    ],
    lambda token: token.id,
)


@click.group("token", invoke_without_command=True)
@click.option("--label", multiple=True, metavar="K=V", help="A label granted to the node; repeatable.")
@click.option("--cluster", "cluster_name", help="The cluster of the node. [default: default]")
@click.option(
    "--from",
    "addresses",
    multiple=True,
    metavar="CIDR",
    help="Network from which it may be used; repeatable.",
)
@click.option(
    "--valid", metavar="DURATION", default=TOKEN_VALID, show_default=True, help="Lifetime of the token."
)
@click.option(
    "--local", is_flag=True, help="For an agent on this machine, if the server listens on loopback only."
)
@click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
@click.option(
    "--context", "context_name", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]"
)
@output_option
@click.pass_context
def token(context: click.Context, /, **options: Any) -> None:
    """Print the command that makes another machine a node; it can be used once."""
    if context.invoked_subcommand is None:
        _create(context=options.pop("context_name"), **options)


@with_cluster(WORKING_SECONDS)
def _create(cluster: Cluster, *, label: Sequence[str], valid: str, output: str, **options: Any) -> None:
    valid_seconds = seconds(valid, "--valid") or 0.0
    made = cluster.join_tokens.create(
        labels=pairs(label, "--label") or None,
        cluster=options["cluster_name"],
        addresses=list(options["addresses"]) or None,
        valid_seconds=valid_seconds,
        local=options["local"] or None,
    )
    emit_one(output, made, made.token, lambda: [made.line])
    if output in ("table", "wide"):
        print_note(
            f"run this line on the new machine (single use, valid for {format_duration(valid_seconds)})"
        )


@token.command("ls")
@output_option
@with_cluster()
def list_tokens(cluster: Cluster, output: str) -> None:
    """List join tokens, without their secrets; they are listed until a day after they expire."""
    emit(output, TOKENS, cluster.join_tokens.list())


@token.command("revoke")
@click.argument("ids", nargs=-1, required=True, metavar="ID")
@with_cluster(WORKING_SECONDS)
def revoke(cluster: Cluster, ids: Sequence[str]) -> None:
    """Revoke unused join tokens, by id."""
    for token_id in ids:
        cluster.join_tokens.revoke(token_id)
        print_note(f"join token {clean(token_id)}: revoked")
