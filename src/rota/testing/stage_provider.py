"""A provider on the stage: what it says of the machines it was asked for."""

from rota.clusters import machine_transitions
from rota.model.cluster import MACHINE
from rota.testing.stage import Stage, StageMachine


def provide(stage: Stage, machine: StageMachine) -> None:
    """It has made what it was asked for, which joins."""
    cluster, name = stage.mirror.machines[machine.name].cluster, machine.name
    make(stage, name)
    stage.join(machine, cluster, {**stage.mirror.cluster_intents[cluster].node_labels, MACHINE: name})


def ask(stage: Stage, name: str) -> None:
    """It hears what is wanted of it, and nobody hears of it again."""
    stage.ask("clusters", lambda view, now: machine_transitions.on_create_requested(view, name, "", now))


def make(stage: Stage, name: str) -> None:
    """It says that it has, and nothing joins."""
    ask(stage, name)
    stage.ask("clusters", lambda view, now: machine_transitions.on_created(view, name, now))


def fail(stage: Stage, name: str, reason: str) -> None:
    stage.ask("clusters", lambda view, now: machine_transitions.on_create_failed(view, name, reason, now))
    stage.run_to_quiescence()


def keep(stage: Stage, name: str, reason: str) -> None:
    """It was asked to remove it, and cannot."""
    stage.ask("clusters", lambda view, now: machine_transitions.on_remove_failed(view, name, reason, now))
    stage.run_to_quiescence()


def remove(stage: Stage, name: str) -> None:
    """As it was asked to: power and all."""
    stage.ask("clusters", lambda view, _: machine_transitions.on_removed(view, name))
    stage.machines.pop(name, None)
    stage.run_to_quiescence()
