"""`rota server`: the control plane; `rota server status`: how it is."""

import importlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from rota.cli.ui.connection import with_cluster
from rota.cli.ui.formats import clean, format_age, format_duration, format_number, plural
from rota.cli.ui.output import emit_one, output_option
from rota.client.cluster import Cluster
from rota.client.server_views import Server
from rota.config import STORES, ServerOptions


@click.group("server", invoke_without_command=True)
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
@click.option(
    "--never-lead",
    is_flag=True,
    help="With etcd: stand by always; answer reads, forward all else, calls and agents too.",
)
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Start the control plane, or show how it is.

    Off loopback everything speaks TLS; plain text is refused there.
    """
    if context.invoked_subcommand is not None:
        return 0
    # Late: the wiring imports all of Rota; whoever cannot serve is told before that.
    wanted = ServerOptions(**options)
    refused: int = importlib.import_module("rota.wiring.directory_lock").refusal(wanted)
    return refused or int(importlib.import_module("rota.wiring.server").run_server(wanted) or 0)


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@output_option
@with_cluster()
def status(cluster: Cluster, output: str, *, as_json: bool) -> None:
    """Show who leads, how the store answers, when certificates expire, which nodes are refused, and what the
    server failed on."""
    server = cluster.server.status()
    emit_one("json" if as_json else output, server, str(server.epoch), lambda: _lines(server))


def _lines(server: Server) -> Iterator[str]:
    yield f"role      {_role(server)}"
    yield f"version   {clean(server.version)}, started {format_age(server.started_at_ms)} ago"
    yield f"epoch     {server.epoch}"
    yield f"revision  {server.revision}"
    yield f"store     {_store(server)}"
    yield f"holds     {plural(server.jobs, 'job')}, {plural(server.nodes, 'node')}"
    if server.store == "memory":
        yield "memory    a restart loses jobs that wait; what runs is brought back by its nodes"
        yield f"adopted   {plural(server.adopted_jobs, 'job')} since the last restart"
    if server.certificates:
        yield f"certs     {', '.join(map(_certificate, server.certificates))}"
    for sentence in server.certificate_warnings:
        yield f"warning   {clean(sentence)}"
    if server.waits_for_accept:
        taken = f"from a backup taken {format_age(server.restored_from_ms)} ago"
        yield f"restored  {taken}; nodes wait for: rota store accept"
    elif server.opens_in_ms:
        left = f"{server.opens_in_ms / 1000:.0f} s"
        yield f"restored  nodes are greeted in {left}, when all leases have run out"
    for name, reason in sorted(server.refused.items()):
        yield f"refused   {clean(name)}: {clean(reason)}"
    yield from _fault_lines(server)


def _fault_lines(server: Server) -> Iterator[str]:
    """What the server failed on since it was started, and what it leaves alone because of that."""
    if any(server.faults.values()):
        by_stage = ", ".join(f"{count} in {stage}" for stage, count in server.faults.items() if count)
        yield f"faults    {clean(by_stage)}; the server's log has each"
    for one in server.parked:
        yield f"parked    {_parked(one)}"
    if server.parked_count > len(server.parked):
        yield f"parked    {server.parked_count - len(server.parked)} more"


def _parked(one: Mapping[str, Any]) -> str:
    failed = f"{clean(one['key'])}: {clean(one['reconciler'])} failed with {clean(one['error'])}"
    if one["retry_in_ms"] is None:
        return f"{failed}; it is left alone until the next start"
    often = "once" if one["times"] == 1 else f"{one['times']} times"
    again = format_duration(one["retry_in_ms"] / 1000)
    return f"{failed}, {often} since {format_age(one['since_ms'])}; again in {again}"


def _role(server: Server) -> str:
    leader = f", the leader is {clean(server.leader)}" if server.leader and server.role != "leader" else ""
    behind = f", {server.lag_ms / 1000:g} s behind" if server.lag_ms else ""
    return f"{clean(server.role)}{leader}{behind}"


def _certificate(one: Mapping[str, Any]) -> str:
    """`server until 2027-01-02`."""
    end = datetime.fromtimestamp(one["expires_at_ms"] / 1000, UTC)
    return f"{clean(one['name'])} until {end:%Y-%m-%d}"


def _store(server: Server) -> str:
    if server.store_problem is not None:
        return f"{clean(server.store)}, failing: {clean(server.store_problem)}"
    if server.store_median_ms is None or server.store_worst_ms is None:
        return clean(server.store)
    median, worst = format_number(server.store_median_ms), format_number(server.store_worst_ms)
    took = f"a commit takes {median} ms, at most {worst} ms"
    full = "; its disk is full: nothing new is taken" if server.is_short_of_disk else ""
    return f"{clean(server.store)}, {took}{full}"
