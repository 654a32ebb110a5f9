"""`rota ca`: show and rotate the certificate authority of the cluster."""

from collections.abc import Iterator
from datetime import UTC, datetime

import click

from rota.cli.ui.arguments import seconds
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, plural
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.server_views import CaRotation

NAMES_SHOWN = 20
_JOIN_AGAIN = "nodes and watchers that were cut off have to join again: rota node token, rota watcher token"


@click.group("ca")
def command() -> None:
    """Show and rotate the cluster's certificate authority."""


@command.command("status")
@output_option
@with_cluster()
def status(cluster: Cluster, output: str) -> None:
    """Show the trusted authorities, and the nodes and watchers that depend on the previous one."""
    found = cluster.ca.rotation()
    emit_one(output, found, found.phase, lambda: _lines(found))


@command.command("show")
@with_cluster()
def show(cluster: Cluster) -> None:
    """Print the certificates of all trusted authorities, in the format of a client's `ca` file.

    \b
    rota ca show > ca.crt
    """
    click.echo("".join(cluster.ca.get().trusted), nl=False)


@command.command("rotate")
@click.option(
    "--overlap",
    metavar="DURATION",
    help="How long the old CA stays trusted. [default: as long as an expired certificate can be renewed]",
)
@click.option("--finish", is_flag=True, help="End the overlap now, unless something depends on the old CA.")
@click.option("--force", is_flag=True, help="With --finish: even if something does; it has to join again.")
@click.option(
    "--now",
    is_flag=True,
    help="The key has leaked: trust nothing that it signed. All nodes have to join again.",
)
@output_option
@with_cluster(WORKING_SECONDS)
def rotate(
    cluster: Cluster, *, overlap: str | None, finish: bool, force: bool, now: bool, output: str
) -> None:
    """Replace the authority: a new one signs from now on, and the old one stays trusted for an overlap.

    \b
    rota ca rotate
    rota ca status
    rota ca rotate --finish

    Nodes and watchers that are connected renew their certificates by themselves, within minutes.
    """
    if (finish and now) or (overlap is not None and (finish or now)):
        raise click.UsageError("--overlap, --finish and --now exclude each other")
    if force and not finish:
        raise click.UsageError("--force needs --finish")
    if now:
        done = cluster.ca.replace()
    elif finish:
        done = cluster.ca.finish_rotation(force=force)
    else:
        done = cluster.ca.rotate(seconds(overlap, "--overlap"))
    emit_one(output, done, done.phase, lambda: _lines(done))
    if now or force:
        print_note(_JOIN_AGAIN)


def _lines(found: CaRotation) -> Iterator[str]:
    yield f"phase     {_phase(found)}"
    for authority in found.authorities:
        role = "signs" if authority["signs"] else "is trusted until the overlap ends"
        dates = f"made {_day(authority['made_at_ms'])}, expires {_day(authority['expires_at_ms'])}"
        yield f"ca        {clean(authority['fingerprint'])}  {role}; {dates}"
    for authority in found.retired:
        yield f"retired   {clean(authority['fingerprint'])}  since {_day(authority['retired_at_ms'])}"
    kinds = (("nodes", found.nodes), ("away", found.away), ("watchers", found.watchers))
    for kind, names in kinds:
        if names:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            yield f"{kind:<9} {', '.join(map(clean, names[:NAMES_SHOWN]))}{more}: certificate of the old CA"
    if found.phase == "overlap" and not found.dependents:
        yield "next      nothing depends on the old CA: rota ca rotate --finish"


def _phase(found: CaRotation) -> str:
    if found.overlap_until_ms is None:
        return found.phase
    depend = f"{plural(found.dependents, 'certificate')} of the old CA in use"
    return f"{found.phase} until {_moment(found.overlap_until_ms)}; {depend}"


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
