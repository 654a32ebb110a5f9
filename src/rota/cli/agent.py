"""`rota agent`: run the agent of this machine."""

import importlib
from collections.abc import Sequence
from typing import Any

import click

from rota.cli.ui.arguments import pairs
from rota.config import AgentOptions


@click.command("agent")
@click.option(
    "--join", metavar="LINE", help="The line printed by `rota node token`; needed only the first time."
)
@click.option(
    "--config", "config_file", metavar="FILE", help="Settings in TOML; `rota config check` checks them."
)
@click.option("--data-dir", metavar="DIR", help="Directory for the key, the journal and output.")
@click.option("--name", help="The name of the node. [default: that of the machine]")
@click.option("--label", multiple=True, metavar="K=V", help="A label of this node; repeatable.")
@click.option(
    "--resource",
    multiple=True,
    metavar="NAME=N",
    help="A custom resource, or gpu=2 for two devices; repeatable.",
)
@click.option("--gpu-model", metavar="NAME", help="Label gpu_model. [default: from the driver]")
@click.option("--cpu", type=float, metavar="CORES", help="Offer this many cores. [default: all]")
@click.option("--memory", metavar="SIZE", help="Offer this much memory. [default: all]")
@click.option(
    "--drain",
    metavar="DURATION",
    help="On SIGTERM, how long running tasks may take to end before they are stopped. "
    "[default: they are stopped immediately]",
)
@click.option(
    "--keep-work",
    is_flag=True,
    default=None,
    help="On SIGTERM only the agent exits; its tasks keep running, and the next agent takes them over. For a "
    "service that is restarted or upgraded. [default: SIGTERM makes the node leave and stops its tasks]",
)
@click.option(
    "--notice",
    metavar="COMMAND",
    help="Termination notice: run every 5 seconds; while it exits with 0 the machine will be taken away, and "
    "the node drains. Its first output line says in how long, and why.",
)
@click.option(
    "--run-as",
    metavar="USER",
    help="User of the tasks: own, a separate user for each job; self, the user of the agent; or a user name. "
    "[default: own if the agent is root, else self]",
)
@click.option(
    "--pids-max",
    type=int,
    metavar="N",
    help="Maximum of processes and threads of all tasks together; and again for all containers. "
    "[default: half of the machine's limit]",
)
def command(label: Sequence[str], resource: Sequence[str], **options: Any) -> int:
    """Make this machine a node."""
    labels, resources = pairs(label, "--label"), pairs(resource, "--resource")
    chosen = AgentOptions(labels=labels, resources=resources, **options)
    # Imported late: the wiring imports all of Rota.
    return int(importlib.import_module("rota.wiring.agent").run_agent(chosen) or 0)
