"""`rota agent`: this machine's part."""

import importlib
from collections.abc import Sequence
from typing import Any

import click

from rota.cli.ui.arguments import pairs
from rota.config import AgentOptions


@click.command("agent")
@click.option("--join", metavar="LINE", help="What `rota node token` printed; needed the first time only.")
@click.option(
    "--config", "config_file", metavar="FILE", help="Settings in TOML; `rota config check` tries them."
)
@click.option("--data-dir", metavar="DIR", help="Where to keep the key, the journal and output.")
@click.option("--name", help="The node's name. [default: the machine's]")
@click.option("--label", multiple=True, metavar="K=V", help="A label of this node; repeatable.")
@click.option(
    "--resource",
    multiple=True,
    metavar="NAME=N",
    help="A resource of your own naming, or gpu=2 for two devices; repeatable.",
)
@click.option("--gpu-model", metavar="NAME", help="Label gpu_model. [default: as the driver names it]")
@click.option("--cpu", type=float, metavar="CORES", help="Offer this many cores. [default: all]")
@click.option("--memory", metavar="SIZE", help="Offer this much memory. [default: all]")
@click.option(
    "--drain",
    metavar="DURATION",
    help="When it is told to leave by SIGTERM, its work has so long to end before it is stopped. "
    "[default: it is stopped at once]",
)
@click.option(
    "--keep-work",
    is_flag=True,
    default=None,
    help="SIGTERM ends the agent alone: its work goes on, and the next agent takes it up. For a service that "
    "is restarted or upgraded. [default: SIGTERM makes the node leave and stops its work]",
)
@click.option(
    "--notice",
    metavar="COMMAND",
    help="Asked every 5 seconds; while it ends with 0 this machine is about to be taken away, and drains. "
    "Its first line: in how long, and why.",
)
@click.option(
    "--run-as",
    metavar="USER",
    help="Who the work runs as: own, a user of its own for each job; self, as the agent; or a user's name. "
    "[default: own for a root agent, else self]",
)
@click.option(
    "--pids-max",
    type=int,
    metavar="N",
    help="Processes and threads of all work together; of all containers as many once more. "
    "[default: half of all]",
)
def command(label: Sequence[str], resource: Sequence[str], **options: Any) -> int:
    """Make this machine a node."""
    labels, resources = pairs(label, "--label"), pairs(resource, "--resource")
    chosen = AgentOptions(labels=labels, resources=resources, **options)
    # Late: the wiring imports all of Rota.
    return int(importlib.import_module("rota.wiring.agent").run_agent(chosen) or 0)
