"""`rota server`: run the control plane, or show its status."""

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
    "--config", "config_file", metavar="FILE", help="Settings in TOML; `rota config check` checks them."
)
@click.option("--data-dir", metavar="DIR", help="Directory for jobs, certificates and tokens.")
@click.option(
    "--store",
    metavar="STORE",
    help=f"Where jobs are stored: {', '.join(STORES)} or etcd://HOST:PORT,... [default: sqlite]",
)
@click.option("--name", help="The name of the cluster. [default: default]")
@click.option("--http-addr", metavar="HOST:PORT", help="Listen address for users. [default: 127.0.0.1:3000]")
@click.option(
    "--grpc-addr", metavar="HOST:PORT", help="Listen address for controllers. [default: 127.0.0.1:50000]"
)
@click.option(
    "--agent-addr", metavar="HOST:PORT", help="Listen address for agents. [default: 127.0.0.1:50001]"
)
@click.option(
    "--never-lead",
    is_flag=True,
    help="With etcd: always stay a standby; answer reads, forward everything else to the leader.",
)
@click.pass_context
def command(context: click.Context, /, **options: Any) -> int:
    """Start the control plane, or show its status.

    Outside loopback all listeners use TLS; plain text is refused there.
    """
    if context.invoked_subcommand is not None:
        return 0
    # The lock is checked first: the wiring imports all of Rota, which takes a while.
    chosen = ServerOptions(**options)
    refused: int = importlib.import_module("rota.wiring.directory_lock").refusal(chosen)
    return refused or int(importlib.import_module("rota.wiring.server").run_server(chosen) or 0)


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@output_option
@with_cluster()
def status(cluster: Cluster, output: str, *, as_json: bool) -> None:
    """Show the leader, the store, the expiry of certificates, refused nodes, and internal errors."""
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
        yield "memory    a restart loses waiting jobs; running ones are adopted from their nodes"
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
        yield f"restored  nodes are accepted in {left}, when all leases have expired"
    for name, reason in sorted(server.refused.items()):
        yield f"refused   {clean(name)}: {clean(reason)}"
    yield from _fault_lines(server)


def _fault_lines(server: Server) -> Iterator[str]:
    """Internal errors since the start, and the keys that are parked because of them."""
    if any(server.faults.values()):
        by_stage = ", ".join(f"{count} in {stage}" for stage, count in server.faults.items() if count)
        yield f"faults    {clean(by_stage)}; the server's log has each"
    for fault in server.parked:
        yield f"parked    {_parked(fault)}"
    if server.parked_count > len(server.parked):
        yield f"parked    {server.parked_count - len(server.parked)} more"


def _parked(fault: Mapping[str, Any]) -> str:
    failed = f"{clean(fault['key'])}: {clean(fault['reconciler'])} failed with {clean(fault['error'])}"
    if fault["retry_in_ms"] is None:
        return f"{failed}; not retried until the next start"
    times = "once" if fault["times"] == 1 else f"{fault['times']} times"
    delay = format_duration(fault["retry_in_ms"] / 1000)
    return f"{failed}, {times} since {format_age(fault['since_ms'])}; retry in {delay}"


def _role(server: Server) -> str:
    leader = f", the leader is {clean(server.leader)}" if server.leader and server.role != "leader" else ""
    behind = f", {server.lag_ms / 1000:g} s behind" if server.lag_ms else ""
    return f"{clean(server.role)}{leader}{behind}"


def _certificate(certificate: Mapping[str, Any]) -> str:
    """`server until 2027-01-02`."""
    end = datetime.fromtimestamp(certificate["expires_at_ms"] / 1000, UTC)
    return f"{clean(certificate['name'])} until {end:%Y-%m-%d}"


def _store(server: Server) -> str:
    if server.store_problem is not None:
        return f"{clean(server.store)}, failing: {clean(server.store_problem)}"
    if server.store_median_ms is None or server.store_worst_ms is None:
        return clean(server.store)
    median, worst = format_number(server.store_median_ms), format_number(server.store_worst_ms)
    took = f"a commit takes {median} ms, at most {worst} ms"
    full = "; its disk is full: no new jobs are accepted" if server.is_short_of_disk else ""
    return f"{clean(server.store)}, {took}{full}"
