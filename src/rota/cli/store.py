"""`rota store`: backups of what the server keeps, and the way back from one."""

import importlib
import os
from pathlib import Path
from typing import Any

import click

from rota.cli.output import emit_one, output_option, tell
from rota.cli.session import WORKING_SECONDS, waiting_notice, with_cluster
from rota.cli.words import age, plural
from rota.client.cluster import Cluster
from rota.client.context import resolve


@click.group("store")
def command() -> None:
    """Back up, restore, check and move what the server keeps."""


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Of a server on this machine, stopped or not."
)
@click.option("--addr", metavar="URL", help="The server. [default: ROTA_ADDR, or the context's]")
@click.option("--context", metavar="NAME", help="The context. [default: ROTA_CONTEXT, or local]")
@output_option
def back_up(file: Path, data_dir: Path | None, addr: str | None, context: str | None, output: str) -> None:
    """Write everything the server keeps into FILE, as of one moment, while work goes on.

    \b
    rota store backup rota.backup
    rota store backup rota.backup --data-dir /var/lib/rota

    The file holds the cluster's own keys: whoever has it can be this cluster. A file that is there is
    replaced when the new one is whole.
    """
    partial = file.with_name(f".{file.name}.new")
    try:
        if data_dir is not None:
            contents = _stores().back_up_directory(data_dir, partial)
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
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True, help="Where to; empty or not there."
)
@output_option
def restore(file: Path, data_dir: Path, output: str) -> None:
    """Make a server's data directory from a backup.

    \b
    rota store restore rota.backup --data-dir /var/lib/rota
    rota server --data-dir /var/lib/rota
    rota store accept

    Nodes are refused there until you say that no other server leads them. What was submitted since the
    backup is not known any more, and is stopped when its node comes back. Jobs that may be started once
    only are paused: `rota resume` lets those go on that were not started since.
    """
    contents = _stores().restore(file, data_dir)
    _show(output, contents, f"{data_dir}: {_words(contents)}")
    if output in ("table", "wide"):
        tell(f"next: rota server --data-dir {data_dir}, then rota store accept")


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Of a server on this machine, stopped or not."
)
@output_option
def check(file: Path | None, data_dir: Path | None, output: str) -> None:
    """Say whether a backup or a data directory is whole: every byte is held against its checksum."""
    if (file is None) == (data_dir is None):
        raise click.UsageError("name a backup, or a data directory with --data-dir")
    contents = _stores().check_directory(data_dir) if file is None else _stores().check_backup(file)
    _show(output, contents, f"{contents.where}: good; {_words(contents)}")


@command.command("migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@output_option
def migrate(source: str, target: str, output: str) -> None:
    """Copy everything from one store to another that is empty, while no server runs on either.

    \b
    rota store migrate /var/lib/rota /srv/rota

    Nodes and jobs go on as they were. Do not start a server on FROM again: nodes that have heard of the
    new one refuse it.
    """
    contents = _stores().migrate(source, target)
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
    done = cluster.accept_nodes()
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
        cluster.back_up(file)


def _words(contents: Any) -> str:
    said = (
        f"{plural(contents.jobs, 'job')}, {plural(contents.nodes, 'node')},"
        f" {plural(contents.records, 'record')} at revision {contents.revision}, epoch {contents.epoch}"
    )
    return said if contents.taken_at_ms is None else f"{said}, taken {age(contents.taken_at_ms)} ago"


def _show(output: str, contents: Any, text: str) -> None:
    emit_one(output, contents, str(contents.revision), lambda: [text])


def _stores() -> Any:
    # Late: the wiring imports all of Rota.
    return importlib.import_module("rota.wiring.stores")
