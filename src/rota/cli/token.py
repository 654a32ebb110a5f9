"""`rota token`: create, list and revoke API tokens."""

from collections.abc import Sequence
from datetime import datetime

import click

from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean
from rota.cli.ui.output import TableColumn, TableListing, emit, emit_one, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.server_views import Token

ROLES = ("viewer", "submitter", "operator", "admin")


def _day(at_ms: int | None) -> str:
    """A time in the local time zone."""
    return "-" if not at_ms else datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M")


def _where(token: Token) -> str:
    return "all" if "*" in token.namespaces else ", ".join(token.namespaces)


TOKENS: TableListing[Token] = TableListing(
    "tokens",
    [
        TableColumn("TOKEN", lambda token: token.id),
        TableColumn("NAME", lambda token: token.name),
        TableColumn("ROLE", lambda token: token.role),
        TableColumn("NAMESPACES", _where),
        TableColumn("MADE", lambda token: _day(token.made_at_ms)),
        TableColumn(
            "UNTIL", lambda token: "revoked" if token.expires_at_ms is None else _day(token.expires_at_ms)
        ),
        TableColumn("LAST USED", lambda token: _day(token.last_used_at_ms)),
    ],
    lambda token: token.id,
)


@click.group("token")
def command() -> None:
    """Create, list and revoke API tokens."""


@command.command("make")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="submitter",
    show_default=True,
    help="Permissions of the token.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    help="Restrict it to this namespace; repeatable. [default: all]",
)
@click.option("--valid", metavar="720h", help="Lifetime. [default: until it is revoked]")
@click.option(
    "--replaces",
    metavar="TOKEN",
    help="The id of a token of the same NAME, which stays valid until it is revoked.",
)
@output_option
@with_cluster(WORKING_SECONDS)
def make(
    cluster: Cluster, *, name: str, role: str, namespaces: Sequence[str], output: str, **options: str | None
) -> None:
    """Create a token for NAME and print its secret, which is shown only this once."""
    valid, replaces = options["valid"], options["replaces"]
    made = cluster.tokens.create(name, role, *namespaces, valid_seconds=valid, replaces=replaces)
    emit_one(output, made, made.id, lambda: iter((made.token or "",)))
    if output in ("table", "wide"):
        print_note(f"{clean(made.name)} is {made.role} in {_where(made)}; use it as ROTA_TOKEN, or in a file")
        print_note(f"revoke it: rota token revoke {clean(made.id)}")


@command.command("ls")
@output_option
@with_cluster()
def list_tokens(cluster: Cluster, output: str) -> None:
    """List tokens, without their secrets."""
    emit(output, TOKENS, cluster.tokens.list())


@command.command("revoke")
@click.argument("ids", nargs=-1, required=True, metavar="TOKEN")
@with_cluster(WORKING_SECONDS)
def revoke(cluster: Cluster, ids: Sequence[str]) -> None:
    """Revoke tokens by id: their next requests are refused, and open streams end within 5 s."""
    for token_id in ids:
        cluster.tokens.revoke(token_id)
        print_note(f"token {clean(token_id)} is revoked")
