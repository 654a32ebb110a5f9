"""`rota namespace`: what each group of jobs holds and may hold, its share, what it asks for by default."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from rota.cli.ui.arguments import pairs
from rota.cli.ui.connection import WORKING_SECONDS, with_cluster
from rota.cli.ui.formats import clean, format_number, format_size
from rota.cli.ui.output import TableColumn, TableListing, emit, emit_one, output_option, print_note
from rota.client.cluster import Cluster
from rota.client.server_views import Namespace

SIZES = ("memory", "disk")
USUAL = ("cpu", "memory", "gpu", "tasks")
NONE = "none"
ALL = "all"


def _share(namespace: Namespace, name: str) -> str:
    """What it holds, of what it may hold."""
    show = format_size if name in SIZES else format_number
    held, quota = namespace.held.get(name, 0), namespace.quota.get(name)
    return show(held) if quota is None else f"{show(held)}/{show(quota)}"


def _others(namespace: Namespace) -> str:
    names = sorted({*namespace.quota, *namespace.held} - set(USUAL))
    return ", ".join(f"{name} {_share(namespace, name)}" for name in names)


def _defaults(namespace: Namespace) -> str:
    """What a task asks for whose job does not say."""
    told = namespace.defaults.items()
    return ", ".join(
        f"{name} {(format_size if name in SIZES else format_number)(amount)}" for name, amount in told
    )


NAMESPACES: TableListing[Namespace] = TableListing(
    "namespaces",
    [
        TableColumn("NAMESPACE", lambda one: one.name),
        TableColumn("WEIGHT", lambda one: one.weight, right=True),
        TableColumn("CPU", lambda one: _share(one, "cpu"), right=True),
        TableColumn("MEMORY", lambda one: _share(one, "memory"), right=True),
        TableColumn("GPU", lambda one: _share(one, "gpu"), right=True),
        TableColumn("TASKS", lambda one: _share(one, "tasks"), right=True),
        TableColumn("WAITING", lambda one: one.waiting, right=True),
        TableColumn("OTHERS", _others),
        TableColumn("DEFAULTS", _defaults),
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
    namespaces = cluster.namespaces.list()
    if not namespaces and output in ("table", "wide"):
        print_note("no namespace holds anything; limit one: rota namespace set NAME cpu=8")
        return
    emit(output, NAMESPACES, namespaces)


@command.command("show")
@click.argument("name")
@output_option
@with_cluster()
def show_namespace(cluster: Cluster, name: str, output: str) -> None:
    """Show a namespace: what it holds and may hold, its share, and what its tasks ask for by default."""
    shown = cluster.namespaces.get(name)
    emit_one(output, shown, shown.name, lambda: _lines(shown))


@command.command("set")
@click.argument("name")
@click.argument("quota", nargs=-1, metavar="[RESOURCE=AMOUNT]")
@click.option(
    "--weight", type=int, metavar="1-1000", help="Its share against the others. [default: as it is]"
)
@click.option(
    "--default",
    "defaults",
    multiple=True,
    metavar="RESOURCE=AMOUNT",
    help="What a task asks for whose job does not say, as memory=4g; repeatable.",
)
@click.option("--max-priority", metavar="0-100", help="The highest that its jobs may have.")
@click.option("--max-jobs", metavar="COUNT", help="Jobs that have not ended.")
@click.option("--max-tasks", metavar="COUNT", help="Tasks of jobs that have not ended.")
@click.option("--max-bytes", metavar="SIZE", help="Commands, environments and files of all its jobs.")
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    metavar="TAINT",
    help="A taint that its jobs may tolerate; repeatable. `none`: no taint, `all`: every one.",
)
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="NAME",
    help="A cluster that its jobs may use; repeatable. `all`: every one.",
)
@output_option
@with_cluster(WORKING_SECONDS)
def set_namespace(cluster: Cluster, name: str, quota: Sequence[str], output: str, **flags: Any) -> None:
    """Set what the jobs of a namespace may hold together, its share, and what they ask for by default.

    RESOURCE is cpu, memory, disk, gpu, tasks or any other thing nodes have; `none` takes a limit or a default
    off. What is not named stays as it is.
    """
    weight, defaults, bounds = flags["weight"], flags["defaults"], _said_bounds(flags)
    if not quota and weight is None and not defaults and not bounds:
        raise click.UsageError("nothing is to change; write cpu=8, tasks=100, --weight 2 or --default cpu=2")
    before = cluster.namespaces.get(name)
    after = cluster.namespaces.set(
        name,
        _kept(before.quota, pairs(quota, "RESOURCE=AMOUNT")),
        before.weight if weight is None else weight,
        defaults=_kept(before.defaults, pairs(defaults, "--default")) if defaults else None,
        bounds=_kept(before.bounds, bounds) if bounds else None,
    )
    emit_one(output, after, after.name, lambda: _lines(after))


def _said_bounds(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds that were named, `none` where one is to be taken off."""
    numbers = {name: flags[f"max_{name}"] for name in ("priority", "jobs", "tasks", "bytes")}
    said: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    for name, given in (("tolerate", flags["tolerations"]), ("clusters", flags["clusters"])):
        if ALL in given:
            said[name] = NONE
        elif given:
            said[name] = [one for one in given if one != NONE]
    return said


def _kept(before: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    return {resource: amount for resource, amount in {**before, **said}.items() if amount != NONE}


@command.command("rm")
@click.argument("names", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def remove(cluster: Cluster, names: tuple[str, ...]) -> None:
    """Take quota, weight, defaults and bounds off namespaces; their jobs go on."""
    for name in names:
        cluster.namespaces.delete(name)
        print_note(f"namespace {clean(name)}: no quota, weight 1")


def _lines(namespace: Namespace) -> Iterator[str]:
    limits = ", ".join(f"{name} {_share(namespace, name)}" for name in namespace.quota)
    yield f"namespace {clean(namespace.name)}: {clean(limits or 'no quota')}, weight {namespace.weight}"
    if namespace.defaults:
        yield f"  a task asks for {clean(_defaults(namespace))}, unless its job says otherwise"
    if namespace.bounds:
        yield f"  its jobs are bound to {clean(', '.join(_bounds(namespace)))}"


def _bounds(namespace: Namespace) -> Iterator[str]:
    """Each bound with what there is of it."""
    for name, most in namespace.bounds.items():
        show = format_size if name == "bytes" else format_number
        if name in namespace.kept:
            yield f"{name} {show(namespace.kept[name])}/{show(most)}"
        elif name == "priority":
            yield f"priority {most}"
        else:
            yield f"{name} {' '.join(most) or NONE}"
