"""`rota store`: back up, restore, check and migrate the store of a server."""

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
    """Back up, restore, check and migrate the store of the server."""


def location_options(function: Function) -> Function:
    """Adds the options that locate a store directly, without a server."""
    for option in (
        click.option(
            "--config", "config_file", metavar="FILE", help="Settings of the server, for access to etcd."
        ),
        click.option("--store", metavar="URL", help="The store of servers on etcd: etcd://HOST:PORT,..."),
        click.option("--data-dir", metavar="DIR", help="The store of a server on this machine."),
    ):
        function = option(function)
    return function


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@location_options
@click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
@click.option("--context", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]")
@output_option
def back_up(file: Path, addr: str | None, context: str | None, output: str, **where: str | None) -> None:
    """Write a consistent backup of the store to FILE while jobs run.

    \b
    rota store backup rota.backup
    rota store backup rota.backup --data-dir /var/lib/rota

    The server sends it, or its store is read directly, whether the server runs or not. FILE contains the
    keys of the cluster: keep it secret. An existing file is replaced when the new one is complete.
    """
    partial = file.with_name(f".{file.name}.new")
    location = _location(**where)
    try:
        if location is not None:
            contents = _stores().back_up(location, partial)
        else:
            with Cluster(resolve(addr, None, context), WORKING_SECONDS, waiting_notice()) as cluster:
                _download(cluster, partial)
            contents = _stores().check_backup(partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    _show(output, contents, f"{file}: {_describe(contents)}")


@command.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@location_options
@output_option
def restore(file: Path, output: str, **where: str | None) -> None:
    """Make a new store from a backup: a data directory, or one on etcd.

    \b
    rota store restore rota.backup --data-dir /var/lib/rota
    rota server --data-dir /var/lib/rota
    rota store accept

    Nodes are refused until you confirm that no other server leads them. Jobs submitted since the backup are
    unknown, and their tasks are stopped when their node reconnects. Jobs that may be started only once are
    paused: `rota resume` resumes those that were not started since.
    """
    location = _location(**where)
    if location is None:
        raise click.UsageError("name the target: --data-dir DIR or --store URL")
    contents = _stores().restore(file, location)
    _show(output, contents, f"{contents.where}: {_describe(contents)}")
    if output in ("table", "wide"):
        print_note("next: start the server there, then rota store accept")


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@location_options
@output_option
def check(file: Path | None, output: str, **where: str | None) -> None:
    """Check that a backup or a store is intact: every byte is verified by its checksum.

    \b
    rota store check rota.backup
    rota store check --data-dir /var/lib/rota
    """
    location = _location(**where)
    if (file is None) == (location is None):
        raise click.UsageError("name either a backup, or a store with --data-dir or --store")
    contents = _stores().check_store_location(location) if file is None else _stores().check_backup(file)
    _show(output, contents, f"{contents.where}: good; {_describe(contents)}")


@command.command("migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--config", "config_file", metavar="FILE", help="Settings of the server, for access to etcd.")
@output_option
def migrate(source: str, target: str, config_file: str | None, output: str) -> None:
    """Copy a store to an empty one, while no server runs on either.

    \b
    rota store migrate --config server.toml /var/lib/rota etcd://10.0.0.1:2379,10.0.0.2:2379
    rota store migrate etcd://127.0.0.1:2379 /var/lib/rota

    Nodes and jobs continue unchanged. Do not start a server on FROM again: nodes that have seen the new
    server refuse it.
    """
    locations = _locations()
    contents = _stores().migrate(
        locations.store_location("FROM", source, config_file),
        locations.store_location("TO", target, config_file),
    )
    _show(output, contents, f"{contents.where}: {_describe(contents)}")


@command.command("accept")
@output_option
@with_cluster(WORKING_SECONDS)
def accept(cluster: Cluster, output: str) -> None:
    """Accept nodes after a restore: you confirm that no other server leads them.

    \b
    rota server status
    rota store accept

    The epoch is raised above the highest one that nodes have seen elsewhere; nodes refuse their previous
    server from then on.
    """
    done = cluster.server.accept_nodes()
    later = f", in {done.open_in_ms / 1000:.0f} s, when all leases have expired" if done.open_in_ms else ""
    emit_one(
        output,
        done,
        str(done.epoch),
        lambda: [f"nodes may connect to this server{later}; epoch {done.epoch}"],
    )


def _download(cluster: Cluster, partial: Path) -> None:
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        cluster.server.back_up(file)


def _describe(contents: Any) -> str:
    text = (
        f"{plural(contents.jobs, 'job')}, {plural(contents.nodes, 'node')},"
        f" {plural(contents.records, 'record')} at revision {contents.revision}, epoch {contents.epoch}"
    )
    return text if contents.taken_at_ms is None else f"{text}, taken {format_age(contents.taken_at_ms)} ago"


def _show(output: str, contents: Any, text: str) -> None:
    emit_one(output, contents, str(contents.revision), lambda: [text])


def _location(data_dir: str | None, store: str | None, config_file: str | None) -> Any:
    """The store named by the options; None: ask the server."""
    if data_dir is not None and store is not None:
        raise click.UsageError("--data-dir and --store exclude each other")
    location = data_dir or store
    field = "--data-dir" if data_dir else "--store"
    return None if location is None else _locations().store_location(field, location, config_file)


# Imported late: the wiring imports all of Rota.


def _locations() -> Any:
    return importlib.import_module("rota.wiring.store_location")


def _stores() -> Any:
    return importlib.import_module("rota.wiring.store_commands")
