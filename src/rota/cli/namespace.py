"""`rota namespace`: quota, weight, defaults and bounds of groups of jobs."""

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
    """Held resources, of the quota."""
    show = format_size if name in SIZES else format_number
    held, quota = namespace.held.get(name, 0), namespace.quota.get(name)
    return show(held) if quota is None else f"{show(held)}/{show(quota)}"


def _others(namespace: Namespace) -> str:
    names = sorted({*namespace.quota, *namespace.held} - set(USUAL))
    return ", ".join(f"{name} {_share(namespace, name)}" for name in names)


def _defaults(namespace: Namespace) -> str:
    """The default requests of a task."""
    return ", ".join(
        f"{name} {(format_size if name in SIZES else format_number)(amount)}"
        for name, amount in namespace.defaults.items()
    )


NAMESPACES: TableListing[Namespace] = TableListing(
    "namespaces",
    [
        TableColumn("NAMESPACE", lambda namespace: namespace.name),
        TableColumn("WEIGHT", lambda namespace: namespace.weight, right=True),
        TableColumn("CPU", lambda namespace: _share(namespace, "cpu"), right=True),
        TableColumn("MEMORY", lambda namespace: _share(namespace, "memory"), right=True),
        TableColumn("GPU", lambda namespace: _share(namespace, "gpu"), right=True),
        TableColumn("TASKS", lambda namespace: _share(namespace, "tasks"), right=True),
        TableColumn("WAITING", lambda namespace: namespace.waiting, right=True),
        TableColumn("OTHERS", _others),
        TableColumn("DEFAULTS", _defaults),
    ],
    lambda namespace: namespace.name,
)


@click.group("namespace")
def command() -> None:
    """Show and set quotas and limits of groups of jobs."""


@command.command("ls")
@output_option
@with_cluster()
def list_namespaces(cluster: Cluster, output: str) -> None:
    """List namespaces: held resources, quota, and waiting jobs."""
    namespaces = cluster.namespaces.list()
    if not namespaces and output in ("table", "wide"):
        print_note("no namespaces with jobs or settings; set a quota: rota namespace set NAME cpu=8")
        return
    emit(output, NAMESPACES, namespaces)


@command.command("show")
@click.argument("name")
@output_option
@with_cluster()
def show_namespace(cluster: Cluster, name: str, output: str) -> None:
    """Show a namespace: held resources, quota, weight, defaults and bounds."""
    shown = cluster.namespaces.get(name)
    emit_one(output, shown, shown.name, lambda: _lines(shown))


@command.command("set")
@click.argument("name")
@click.argument("quota", nargs=-1, metavar="[RESOURCE=AMOUNT]")
@click.option(
    "--weight", type=int, metavar="1-1000", help="Its share relative to the others. [default: unchanged]"
)
@click.option(
    "--default",
    "defaults",
    multiple=True,
    metavar="RESOURCE=AMOUNT",
    help="Request of a task whose job gives none, as memory=4g; repeatable.",
)
@click.option("--max-priority", metavar="0-100", help="Highest priority of its jobs.")
@click.option("--max-jobs", metavar="COUNT", help="Maximum of unfinished jobs.")
@click.option("--max-tasks", metavar="COUNT", help="Maximum of tasks of unfinished jobs.")
@click.option(
    "--max-bytes", metavar="SIZE", help="Maximum size of commands, environments and files of all its jobs."
)
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    metavar="TAINT",
    help="A taint that its jobs may tolerate; repeatable. `none`: no taint, `all`: any.",
)
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="NAME",
    help="A cluster that its jobs may use; repeatable. `all`: any.",
)
@output_option
@with_cluster(WORKING_SECONDS)
def set_namespace(cluster: Cluster, name: str, quota: Sequence[str], output: str, **flags: Any) -> None:
    """Set quota, weight, defaults and bounds of a namespace.

    RESOURCE is cpu, memory, disk, gpu, tasks or a custom resource; `none` removes a limit or a default. What
    is not named stays unchanged.
    """
    weight, defaults, bounds = flags["weight"], flags["defaults"], _bounds_to_set(flags)
    if not quota and weight is None and not defaults and not bounds:
        raise click.UsageError("nothing to change; write cpu=8, tasks=100, --weight 2 or --default cpu=2")
    before = cluster.namespaces.get(name)
    after = cluster.namespaces.set(
        name,
        _merged(before.quota, pairs(quota, "RESOURCE=AMOUNT")),
        before.weight if weight is None else weight,
        defaults=_merged(before.defaults, pairs(defaults, "--default")) if defaults else None,
        bounds=_merged(before.bounds, bounds) if bounds else None,
    )
    emit_one(output, after, after.name, lambda: _lines(after))


def _bounds_to_set(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds to set; `none` removes one."""
    numbers = {name: flags[f"max_{name}"] for name in ("priority", "jobs", "tasks", "bytes")}
    bounds: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    for name, given in (("tolerate", flags["tolerations"]), ("clusters", flags["clusters"])):
        if ALL in given:
            bounds[name] = NONE
        elif given:
            bounds[name] = [value for value in given if value != NONE]
    return bounds


def _merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {resource: amount for resource, amount in {**before, **changes}.items() if amount != NONE}


@command.command("rm")
@click.argument("names", nargs=-1, required=True)
@with_cluster(WORKING_SECONDS)
def remove(cluster: Cluster, names: tuple[str, ...]) -> None:
    """Delete quota, weight, defaults and bounds of namespaces; their jobs keep running."""
    for name in names:
        cluster.namespaces.delete(name)
        print_note(f"namespace {clean(name)}: no quota, weight 1")


def _lines(namespace: Namespace) -> Iterator[str]:
    limits = ", ".join(f"{name} {_share(namespace, name)}" for name in namespace.quota)
    yield f"namespace {clean(namespace.name)}: {clean(limits or 'no quota')}, weight {namespace.weight}"
    if namespace.defaults:
        yield f"  default requests of a task: {clean(_defaults(namespace))}"
    if namespace.bounds:
        yield f"  bounds of its jobs: {clean(', '.join(_bounds(namespace)))}"


def _bounds(namespace: Namespace) -> Iterator[str]:
    """Each bound with its current usage."""
    for name, most in namespace.bounds.items():
        show = format_size if name == "bytes" else format_number
        if name in namespace.kept:
            yield f"{name} {show(namespace.kept[name])}/{show(most)}"
        elif name == "priority":
            yield f"priority {most}"
        else:
            yield f"{name} {' '.join(most) or NONE}"
