"""`rota dev`: run a whole cluster on this machine."""

import importlib
import secrets
from collections.abc import Sequence

import click

from rota.cli.ui.arguments import pairs
from rota.config import AGENT_PORT, GRPC_PORT, HTTP_PORT, STORES, ChaosOptions, DevOptions

PORT = click.IntRange(0, 65535)
SEEDS = 10_000  # enough variety, and short to type


@click.command("dev")
@click.option(
    "--nodes", type=click.IntRange(0, 100), default=1, show_default=True, help="How many agents to start."
)
@click.option(
    "--elastic",
    metavar="MIN-MAX",
    help="Nodes of one core each that are created and removed by demand, as 0-8.",
)
@click.option(
    "--listen", metavar="ADDR", help="Also listen for other machines, with TLS. [default: loopback only]"
)
@click.option(
    "--port", type=PORT, help=f"Port of the API; 0 chooses free ports for all. [default: {HTTP_PORT}]"
)
@click.option("--grpc-port", type=PORT, help=f"Port for controllers. [default: {GRPC_PORT}]")
@click.option("--agent-port", type=PORT, help=f"Port for agents. [default: {AGENT_PORT}]")
@click.option("--data-dir", metavar="DIR", help="Directory for jobs, certificates and output.")
@click.option(
    "--store", type=click.Choice(STORES), default="sqlite", show_default=True, help="Where jobs are stored."
)
@click.option(
    "--label",
    multiple=True,
    metavar="[NODE:]K=V",
    help="A label of all nodes, or of one, as node-1:region=eu; repeatable.",
)
@click.option(
    "--resource",
    multiple=True,
    metavar="[NODE:]NAME=N",
    help="A resource of all nodes, or of one, as node-1:gpu=2; repeatable.",
)
@click.option(
    "--chaos", is_flag=True, help="Kill, freeze and disconnect nodes at random, and print what happens."
)
@click.option(
    "--chaos-seed", type=click.IntRange(0), help="Repeat the same faults in the same order. [default: random]"
)
@click.option(
    "--chaos-pace",
    type=click.FloatRange(0.1, 10),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Scale the intervals and outages.",
)
def command(port: int | None, grpc_port: int | None, agent_port: int | None, **options: object) -> int:
    """Start a whole cluster on this machine.

    Control plane, one agent, store, certificates and token are created automatically, in about a second.
    """
    if str(options["listen"] or "").count(":") == 1:
        raise click.BadParameter("write the address only; --port sets the port", param_hint="--listen")
    any_port = port == 0
    elastic = _elastic(options.pop("elastic"), options)
    chosen = DevOptions(
        http_port=HTTP_PORT if port is None else port,
        grpc_port=(0 if any_port else GRPC_PORT) if grpc_port is None else grpc_port,
        agent_port=(0 if any_port else AGENT_PORT) if agent_port is None else agent_port,
        chaos=_chaos(options),
        elastic=elastic,
        labels=_by_node(options.pop("label"), "--label"),
        resources=_by_node(options.pop("resource"), "--resource"),
        **options,  # type: ignore[arg-type]  # click has made nodes an int, the others texts
    )
    # Imported late: the wiring imports all of Rota.
    return int(importlib.import_module("rota.devtools.dev_cluster").run_dev(chosen) or 0)


def _elastic(text: object, options: dict[str, object]) -> tuple[int, int] | None:
    """The limits of --elastic; it replaces the fixed nodes unless --nodes is given, too."""
    if text is None:
        return None
    least, dash, most = str(text).partition("-")
    if not (
        dash and least.isdecimal() and most.isdecimal() and int(least) <= int(most) and 1 <= int(most) <= 100
    ):
        raise click.BadParameter(
            "write the minimum and the maximum, up to 100, as 0-8", param_hint="--elastic"
        )
    if click.get_current_context().get_parameter_source("nodes") is click.core.ParameterSource.DEFAULT:
        options["nodes"] = 0
    return int(least), int(most)


def _by_node(texts: object, flag: str) -> dict[str, dict[str, str]]:
    """`node-1:region=eu` -> values by node; those for all nodes under the empty name."""
    assert isinstance(texts, Sequence)
    found: dict[str, dict[str, str]] = {}
    for name, value in pairs(texts, flag).items():
        node, _, key = name.rpartition(":")
        found.setdefault(node, {})[key] = value
    return found


def _chaos(options: dict[str, object]) -> ChaosOptions | None:
    """Remove the chaos options and return them, if chaos is requested."""
    enabled, seed, pace = (options.pop(name) for name in ("chaos", "chaos_seed", "chaos_pace"))
    assert isinstance(pace, float)
    if not enabled:
        if seed is not None:
            raise click.UsageError("--chaos-seed goes with --chaos")
        return None
    nodes = options["nodes"]
    if isinstance(nodes, int) and nodes < 2:
        raise click.UsageError("--chaos needs 2 nodes or more, because one is always spared; write --nodes 5")
    return ChaosOptions(seed if isinstance(seed, int) else secrets.randbelow(SEEDS), pace)
