"""`rota node token`: the right of a machine to join; which there are, and how one is taken back."""

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
        TableColumn("TOKEN", lambda one: one.id),
        TableColumn("STATE", lambda one: one.state),
        TableColumn("FOR", lambda one: one.role),
        TableColumn("CLUSTER", lambda one: one.cluster),
        TableColumn("LABELS", lambda one: labels(one.labels)),
        TableColumn("FROM", lambda one: ", ".join(one.addresses) or "-"),
        TableColumn("MADE", lambda one: f"{format_age(one.made_at_ms)} ago"),
        TableColumn("USED BY", lambda one: one.used_by or "-"),
    ],
    lambda one: one.id,
)


@click.group("token", invoke_without_command=True)
@click.option("--label", multiple=True, metavar="K=V", help="A label the node is granted; repeatable.")
@click.option("--cluster", "cluster_name", help="The cluster it will belong to. [default: default]")
@click.option("--from", "addresses", multiple=True, metavar="CIDR", help="Where it may be used; repeatable.")
@click.option(
    "--valid", metavar="DURATION", default=TOKEN_VALID, show_default=True, help="How long it may be used."
)
@click.option(
    "--local", is_flag=True, help="For an agent on this machine, where the server listens on loopback."
)
@click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
@click.option(
    "--context", "context_name", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]"
)
@output_option
@click.pass_context
def token(context: click.Context, /, **options: Any) -> None:
    """Print the line that makes another machine a node; it can be used once."""
    if context.invoked_subcommand is None:
        _make(context=options.pop("context_name"), **options)


@with_cluster(WORKING_SECONDS)
def _make(cluster: Cluster, *, label: Sequence[str], valid: str, output: str, **wishes: Any) -> None:
    valid_seconds = seconds(valid, "--valid") or 0.0
    made = cluster.join_tokens.create(
        labels=pairs(label, "--label") or None,
        cluster=wishes["cluster_name"],
        addresses=list(wishes["addresses"]) or None,
        valid_seconds=valid_seconds,
        local=wishes["local"] or None,
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
    """List join tokens, without their secrets, until a day after they have expired."""
    emit(output, TOKENS, cluster.join_tokens.list())


@token.command("revoke")
@click.argument("ids", nargs=-1, required=True, metavar="ID")
@with_cluster(WORKING_SECONDS)
def revoke(cluster: Cluster, ids: Sequence[str]) -> None:
    """Take back join tokens that were not used, by id."""
    for one in ids:
        cluster.join_tokens.revoke(one)
        print_note(f"join token {clean(one)}: revoked")
