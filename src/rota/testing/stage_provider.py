"""The provider of a Stage: its answers about the machines it was asked for."""

from rota.clusters import machine_transitions
from rota.model.cluster import MACHINE
from rota.testing.stage import Stage, StageMachine


def provide(stage: Stage, machine: StageMachine) -> None:
    """The provider creates a requested machine, which joins."""
    cluster, name = stage.mirror.machines[machine.name].cluster, machine.name
    make(stage, name)
    stage.join(machine, cluster, {**stage.mirror.cluster_intents[cluster].node_labels, MACHINE: name})


def ask(stage: Stage, name: str) -> None:
    """The provider is asked for a machine and never answers."""
    stage.ask("clusters", lambda view, now: machine_transitions.on_create_requested(view, name, "", now))


def make(stage: Stage, name: str) -> None:
    """The provider reports the machine as created, but it does not join."""
    ask(stage, name)
    stage.ask("clusters", lambda view, now: machine_transitions.on_created(view, name, now))


def fail(stage: Stage, name: str, reason: str) -> None:
    stage.ask("clusters", lambda view, now: machine_transitions.on_create_failed(view, name, reason, now))
    stage.run_to_quiescence()


def keep(stage: Stage, name: str, reason: str) -> None:
    """The provider fails to remove a machine."""
    stage.ask("clusters", lambda view, now: machine_transitions.on_remove_failed(view, name, reason, now))
    stage.run_to_quiescence()


def remove(stage: Stage, name: str) -> None:
    """The provider removes a machine."""
    stage.ask("clusters", lambda view, _: machine_transitions.on_removed(view, name))
    stage.machines.pop(name, None)
    stage.run_to_quiescence()
