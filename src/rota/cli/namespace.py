"""`rota namespace`: what each group of jobs holds, what it may hold, and its share against the others."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from rota.cli.arguments import pairs
from rota.cli.output import Column, Listing, emit, emit_one, output_option, tell
from rota.cli.session import WORKING_SECONDS, with_cluster
from rota.cli.words import clean, number, size
from rota.client.cluster import Cluster
from rota.client.server_views import Namespace

SIZES = ("memory", "disk")
USUAL = ("cpu", "memory", "gpu", "tasks")
NONE = "none"


def _share(namespace: Namespace, name: str) -> str:
    """What it holds, of what it may hold."""
    show = size if name in SIZES else number
    held, quota = namespace.held.get(name, 0), namespace.quota.get(name)
    return show(held) if quota is None else f"{show(held)}/{show(quota)}"


def _others(namespace: Namespace) -> str:
    names = sorted({*namespace.quota, *namespace.held} - set(USUAL))
    return ", ".join(f"{name} {_share(namespace, name)}" for name in names)


NAMESPACES: Listing[Namespace] = Listing(
    "namespaces",
    [
        Column("NAMESPACE", lambda one: one.name),
        Column("WEIGHT", lambda one: one.weight, right=True),
        Column("CPU", lambda one: _share(one, "cpu"), right=True),
        Column("MEMORY", lambda one: _share(one, "memory"), right=True),
        Column("GPU", lambda one: _share(one, "gpu"), right=True),
        Column("TASKS", lambda one: _share(one, "tasks"), right=True),
        Column("WAITING", lambda one: one.waiting, right=True),
        Column("OTHERS", _others),
    ],
    lambda one: one.name,
)


@click.group("namespace")
def command() -> None:
    """Show and set what groups of jobs may hold together."""


@command.command("ls")
@output_option
@with_cluster()
def list_namespaces(cluster: Cluster, output: str) -> None:
    """List namespaces: what each holds of what it may hold, and how many of its jobs wait."""
    namespaces = cluster.namespaces()
    if not namespaces and output in ("table", "wide"):
        tell("no namespace holds anything; limit one: rota namespace set NAME cpu=8")
        return
    emit(output, NAMESPACES, namespaces)


@command.command("set")
@click.argument("name")
@click.argument("quota", nargs=-1, metavar="[RESOURCE=AMOUNT]")
@click.option(
    "--weight", type=int, metavar="1-1000", help="Its share against the others. [default: as it is]"
)
@output_option
@with_cluster(WORKING_SECONDS)
def set_namespace(cluster: Cluster, name: str, quota: Sequence[str], weight: int | None, output: str) -> None:
    """Set what the jobs of a namespace may hold together, and its share.

    RESOURCE is cpu, memory, disk, gpu, tasks or any other thing nodes have; an AMOUNT of `none` takes the
    limit off. What is not named stays as it is.
    """
    if not quota and weight is None:
        raise click.UsageError("nothing is to change; write cpu=8, tasks=100 or --weight 2")
    before = cluster.namespace(name)
    wanted: dict[str, Any] = {**before.quota, **pairs(quota, "RESOURCE=AMOUNT")}
    kept = {resource: amount for resource, amount in wanted.items() if amount != NONE}
    after = cluster.set_namespace(name, kept, before.weight if weight is None else weight)
    emit_one(output, after, after.name, lambda: _lines(after))


@command.command("rm")
@click.argument("names", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def remove(cluster: Cluster, names: tuple[str, ...]) -> None:
    """Take quota and weight off namespaces; their jobs go on."""
    for name in names:
        cluster.forget_namespace(name)
        tell(f"namespace {clean(name)}: no quota, weight 1")


def _lines(namespace: Namespace) -> Iterator[str]:
    limits = ", ".join(f"{name} {_share(namespace, name)}" for name in namespace.quota)
    yield f"namespace {clean(namespace.name)}: {clean(limits or 'no quota')}, weight {namespace.weight}"
