"""The machines that a provider lists + those we know -> which are gone, lost, doubled, or nobody's."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rota.clusters.machines import failed, given_up, gone, is_stuck, not_made, not_removed, together
from rota.model.cluster import Machine
from rota.model.lifecycle import MachineState
from rota.model.plan import NOTHING, Event, Instant, Plan
from rota.model.view import View

_TWICE = "its provider has made more than one of that name"
_UNKNOWN = "its provider does not know it any more"
_NEVER = "its provider says that it has made it, and does not list it"
_STILL = "its provider says that it has, and still lists it"
_UNATTRIBUTEDS = "its provider lists it, and nothing was known of it any more"


class Listing(NamedTuple):
    """What was found of one cluster's machines."""

    there: Mapping[str, int]  # how many of each name
    places: Mapping[str, str]  # and where one of them is
    missing: frozenset[str]  # that were not there for a while, and should be
    ended: frozenset[str]  # that the provider had said to have removed before it was asked


def listed(view: View, cluster: str, listing: Listing, now: Instant) -> Plan:
    known = [machine for machine in view.machines.values() if machine.cluster == cluster]
    return together(
        [
            *(plan for machine in known for plan in _looked_at(view, machine, listing, now)),
            *_found(view, cluster, listing, now),
        ]
    )


def _looked_at(view: View, machine: Machine, listing: Listing, now: Instant) -> Iterator[Plan]:
    there = listing.there.get(machine.name, 0)
    plan, extra = _judged(view, machine, listing, now), max(0, there - 1)
    yield plan
    if extra != machine.extra and machine.key not in plan.deletes:
        turned = next((one for one in plan.puts if isinstance(one, Machine)), machine)
        yield Plan((turned.beside(extra),), why=f"of machine {machine.name} there are {there}")


def _judged(view: View, machine: Machine, listing: Listing, now: Instant) -> Plan:
    there, missing = listing.there.get(machine.name, 0), machine.name in listing.missing
    match machine.state:
        case MachineState.LEAVING if machine.name in listing.ended:
            return not_removed(view, machine.name, _STILL, now) if there else gone(view, machine.name)
        case MachineState.CREATED if missing or there > 1:
            return not_made(view, machine.name, _NEVER if missing else _TWICE, now)
        case MachineState.JOINED if missing or there > 1:
            return given_up(machine, _UNKNOWN if missing else _TWICE, now)
        case _:
            return NOTHING


def _found(view: View, cluster: str, listing: Listing, now: Instant) -> Iterator[Plan]:
    """Machines under numbers that were given out here: they count, and go."""
    known = view.clusters.get(cluster)
    for name in sorted(listing.there):
        if name in view.machines or known is None or not known.gave(name):
            continue
        extra, place = listing.there[name] - 1, listing.places[name]
        state, at_ms = MachineState.LEAVING, now.ms
        machine = Machine(name, cluster, state, at_ms, at_ms, reason=_UNATTRIBUTEDS, place=place, extra=extra)
        why = f"machine {name} goes: {_UNATTRIBUTEDS}"
        yield Plan((machine,), events=(Event("cluster.machine_lost", why, cluster=cluster),), why=why)


def not_listed(view: View, cluster: str, reason: str, now: Instant) -> Plan:
    """What was said to be removed is not seen to be: it counts as long as its provider cannot list."""
    known = view.clusters.get(cluster)
    if known is None:
        return NOTHING
    why = f"machines of cluster {cluster} cannot be listed: {reason}"
    last = f"its machines cannot be listed: {reason}"
    spent = (failed(view, known, last, now.ms, now),) if is_stuck(view, known) else ()
    return Plan(spent, events=(Event("cluster.machine_failed", why, cluster=cluster),), why=why)
