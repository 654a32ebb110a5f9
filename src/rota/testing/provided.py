"""A provider on the stage: what it says of the machines it was asked for."""

from rota.clusters import machines
from rota.model.cluster import MACHINE
from rota.testing.stage import Machine, Stage


def provide(stage: Stage, machine: Machine) -> None:
    """It has made what it was asked for, which joins."""
    cluster, name = stage.mirror.machines[machine.name].cluster, machine.name
    make(stage, name)
    stage.join(machine, cluster, {**stage.mirror.cluster_wishes[cluster].node_labels, MACHINE: name})


def ask(stage: Stage, name: str) -> None:
    """It hears what is wanted of it, and nobody hears of it again."""
    stage.ask("clusters", lambda view, now: machines.asked(view, name, "", now))


def make(stage: Stage, name: str) -> None:
    """It says that it has, and nothing joins."""
    ask(stage, name)
    stage.ask("clusters", lambda view, now: machines.made(view, name, now))


def fail(stage: Stage, name: str, reason: str) -> None:
    stage.ask("clusters", lambda view, now: machines.not_made(view, name, reason, now))
    stage.settle()


def keep(stage: Stage, name: str, reason: str) -> None:
    """It was asked to remove it, and cannot."""
    stage.ask("clusters", lambda view, now: machines.not_removed(view, name, reason, now))
    stage.settle()


def remove(stage: Stage, name: str) -> None:
    """As it was asked to: power and all."""
    stage.ask("clusters", lambda view, _: machines.gone(view, name))
    stage.machines.pop(name, None)
    stage.settle()
