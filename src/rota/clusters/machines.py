"""What a provider says of a machine + its record -> its next state, and what is told of it."""

from rota.model.ids import Key
from rota.model.lifecycle import MachineEvent, MachineState
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.view import View


def made(view: View, name: str, now: Instant) -> Plan:
    """Its provider says that it has made it."""
    machine = view.machines.get(name)
    if machine is None or machine.state is not MachineState.WANTED:
        return NOTHING  # it has joined meanwhile, or is no longer wanted
    return Plan((machine.turned(MachineEvent.MADE, now.ms),), why=f"machine {name} is made")


def not_made(view: View, name: str, reason: str, now: Instant) -> Plan:
    """Its provider could not make it, or it never joined: it goes, and the next one is asked for later."""
    machine = view.machines.get(name)
    if machine is None or not machine.comes:
        return NOTHING
    cluster = view.clusters[machine.cluster].failed(now.ms, reason)
    seconds = (cluster.paused_until_ms - now.ms) / 1000
    why = f"machine {name} is given up: {reason}; cluster {cluster.name} asks for no other for {seconds:g} s"
    event = Event("cluster.machine_failed", why, cluster=cluster.name)
    return Plan((machine.turned(MachineEvent.UNWANTED, now.ms, reason), cluster), events=(event,), why=why)


def gone(view: View, name: str, now: Instant) -> Plan:
    """Its provider says that there is no such machine, any more: its node is forgotten with it."""
    del now
    machine = view.machines.get(name)
    if machine is None:
        return NOTHING
    parts = ("spec", "wish", "status") if machine.node in view.nodes else ()
    keys = (Key(f"node/{machine.node}/{part}") for part in parts)
    why = f"machine {name} is gone: {machine.reason or 'its provider says so'}"
    event = Event("cluster.machine_gone", why, cluster=machine.cluster)
    return Plan(deletes=(machine.key, *keys), events=(event,), why=why)


def seen(view: View, cluster: str, there: frozenset[str], now: Instant) -> Plan:
    """Its provider lists its machines: what had joined and is not there any more goes."""
    lost = [
        machine
        for machine in view.machines.values()
        if machine.cluster == cluster and machine.state is MachineState.JOINED and machine.name not in there
    ]
    if not lost:
        return NOTHING
    reason = "its provider does not know it any more"
    names = ", ".join(machine.name for machine in lost)
    why = f"of the machines of cluster {cluster} its provider does not know {names} any more"
    return Plan(
        tuple(machine.turned(MachineEvent.UNWANTED, now.ms, reason) for machine in lost),
        events=(Event("cluster.machine_lost", why, cluster=cluster),),
        why=why,
    )


def not_removed(view: View, name: str, reason: str) -> Plan:
    """Its provider could not end it: it still counts, and is asked for again."""
    machine = view.machines.get(name)
    if machine is None:
        return NOTHING
    why = f"machine {name} cannot be removed: {reason}"
    return Plan(events=(Event("cluster.machine_failed", why, cluster=machine.cluster),), why=why)
