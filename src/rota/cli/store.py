"""`rota store`: backups of what the server keeps, and the way back from one."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rota.cli.ui.connection import WORKING_SECONDS, waiting_notice, with_cluster
from rota.cli.ui.formats import format_age, plural
from rota.cli.ui.output import emit_one, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.context import resolve

Function = TypeVar("Function", bound=Callable[..., Any])


@click.group("store")
def command() -> None:
    """Back up, restore, check and move what the server keeps."""


def place_options(function: Function) -> Function:
    """Where a store lies, when no server is asked for it."""
    for option in (
        click.option(
            "--config", "config_file", metavar="FILE", help="The server's settings: how etcd is reached."
        ),
        click.option("--store", metavar="URL", help="The store of servers on etcd: etcd://HOST:PORT,..."),
        click.option("--data-dir", metavar="DIR", help="The store of a server on this machine."),
    ):
        function = option(function)
    return function


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@place_options
@click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
@click.option("--context", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]")
@output_option
def back_up(file: Path, addr: str | None, context: str | None, output: str, **where: str | None) -> None:
    """Write everything the server keeps into FILE, as of one moment, while work goes on.

    \b
    rota store backup rota.backup
    rota store backup rota.backup --data-dir /var/lib/rota

    The server is asked, or its store is read, be it stopped or not. FILE holds the cluster's own keys:
    whoever has it can be this cluster. One that is there is replaced when the new one is whole.
    """
    partial = file.with_name(f".{file.name}.new")
    place = _place(**where)
    try:
        if place is not None:
            contents = _stores().back_up(place, partial)
        else:
            with Cluster(resolve(addr, None, context), WORKING_SECONDS, waiting_notice()) as cluster:
                _download(cluster, partial)
            contents = _stores().check_backup(partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    _show(output, contents, f"{file}: {_words(contents)}")


@command.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@place_options
@output_option
def restore(file: Path, output: str, **where: str | None) -> None:
    """Make a new store from a backup: a data directory, or one on etcd.

    \b
    rota store restore rota.backup --data-dir /var/lib/rota
    rota server --data-dir /var/lib/rota
    rota store accept

    Nodes are refused there until you say that no other server leads them. What was submitted since the
    backup is not known any more, and is stopped when its node comes back. Jobs that may be started once
    only are paused: `rota resume` lets those go on that were not started since.
    """
    place = _place(**where)
    if place is None:
        raise click.UsageError("say where to: --data-dir DIR or --store URL")
    contents = _stores().restore(file, place)
    _show(output, contents, f"{contents.where}: {_words(contents)}")
    if output in ("table", "wide"):
        print_note("next: start the server there, then rota store accept")


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@place_options
@output_option
def check(file: Path | None, output: str, **where: str | None) -> None:
    """Say whether a backup or a store is whole: every byte is held against its checksum.

    \b
    rota store check rota.backup
    rota store check --data-dir /var/lib/rota
    """
    place = _place(**where)
    if (file is None) == (place is None):
        raise click.UsageError("name a backup, or a store with --data-dir or --store")
    contents = _stores().check_store_location(place) if file is None else _stores().check_backup(file)
    _show(output, contents, f"{contents.where}: good; {_words(contents)}")


@command.command("migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--config", "config_file", metavar="FILE", help="The server's settings: how etcd is reached.")
@output_option
def migrate(source: str, target: str, config_file: str | None, output: str) -> None:
    """Copy everything to a store that is empty, while no server runs on either.

    \b
    rota store migrate --config server.toml /var/lib/rota etcd://10.0.0.1:2379,10.0.0.2:2379
    rota store migrate etcd://127.0.0.1:2379 /var/lib/rota

    Nodes and jobs go on as they were. Start no server on FROM again: nodes that have heard of the new
    one refuse it.
    """
    places = _places()
    contents = _stores().migrate(
        places.store_location("FROM", source, config_file), places.store_location("TO", target, config_file)
    )
    _show(output, contents, f"{contents.where}: {_words(contents)}")


@command.command("accept")
@output_option
@with_cluster(WORKING_SECONDS)
def accept(cluster: Cluster, output: str) -> None:
    """Let nodes follow this server, after a restore: you say that no other one leads them.

    \b
    rota server status
    rota store accept

    Its epoch passes the highest that nodes have seen elsewhere. Who led them before is refused by them
    from then on.
    """
    done = cluster.server.accept_nodes()
    later = (
        f", in {done.open_in_ms / 1000:.0f} s, when no work under a lease can be left"
        if done.open_in_ms
        else ""
    )
    emit_one(
        output, done, str(done.epoch), lambda: [f"nodes may follow this server{later}; epoch {done.epoch}"]
    )


def _download(cluster: Cluster, partial: Path) -> None:
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        cluster.server.back_up(file)


def _words(contents: Any) -> str:
    said = (
        f"{plural(contents.jobs, 'job')}, {plural(contents.nodes, 'node')},"
        f" {plural(contents.records, 'record')} at revision {contents.revision}, epoch {contents.epoch}"
    )
    return said if contents.taken_at_ms is None else f"{said}, taken {format_age(contents.taken_at_ms)} ago"


def _show(output: str, contents: Any, text: str) -> None:
    emit_one(output, contents, str(contents.revision), lambda: [text])


def _place(data_dir: str | None, store: str | None, config_file: str | None) -> Any:
    """None: the server is asked."""
    if data_dir is not None and store is not None:
        raise click.UsageError("--data-dir and --store are two places: name one")
    said = data_dir or store
    field = "--data-dir" if data_dir else "--store"
    return None if said is None else _places().store_location(field, said, config_file)


# Late: the wiring imports all of Rota.


def _places() -> Any:
    return importlib.import_module("rota.wiring.store_location")


def _stores() -> Any:
    return importlib.import_module("rota.wiring.store_commands")
