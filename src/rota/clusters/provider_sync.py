"""The machines that a provider lists + our records -> removed, lost, duplicate and unattributed machines."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rota.clusters.machine_transitions import (
    abandon_machine,
    is_stuck,
    merge_plans,
    on_create_failed,
    on_remove_failed,
    on_removed,
    with_provider_failure,
)
from rota.model.cluster import Machine
from rota.model.lifecycle import MachineState
from rota.model.plan import NO_CHANGE, EventRecord, Instant, Plan
from rota.model.view import View

_DUPLICATE = "its provider has made more than one of that name"
_UNKNOWN = "its provider does not know it any more"
_NOT_LISTED = "its provider says that it has made it, and does not list it"
_STILL_LISTED = "its provider says that it has, and still lists it"
_UNATTRIBUTED = "its provider lists it, and nothing was known of it any more"


class ProviderListing(NamedTuple):
    """A provider's list of one cluster's machines."""

    counts: Mapping[str, int]  # number of machines per name
    places: Mapping[str, str]  # place of each name
    missing: frozenset[str]  # expected, and not listed for a while
    removed: frozenset[str]  # reported removed before the list was requested


def on_listed(view: View, cluster: str, listing: ProviderListing, now: Instant) -> Plan:
    known = [machine for machine in view.machines.values() if machine.cluster == cluster]
    return merge_plans(
        [
            *(plan for machine in known for plan in _sync_machine(view, machine, listing, now)),
            *_remove_unknown(view, cluster, listing, now),
        ]
    )


def _sync_machine(view: View, machine: Machine, listing: ProviderListing, now: Instant) -> Iterator[Plan]:
    count = listing.counts.get(machine.name, 0)
    plan, extra = _next_transition(view, machine, listing, now), max(0, count - 1)
    yield plan
    if extra != machine.extra and machine.key not in plan.deletes:
        machine_after = next((record for record in plan.puts if isinstance(record, Machine)), machine)
        yield Plan((machine_after.with_extra(extra),), why=f"of machine {machine.name} there are {count}")


def _next_transition(view: View, machine: Machine, listing: ProviderListing, now: Instant) -> Plan:
    count, missing = listing.counts.get(machine.name, 0), machine.name in listing.missing
    match machine.state:
        # Only if the removal was reported before the list was requested; an older
        # list proves nothing about it.
        case MachineState.LEAVING if machine.name in listing.removed:
            return (
                on_remove_failed(view, machine.name, _STILL_LISTED, now)
                if count
                else on_removed(view, machine.name)
            )
        case MachineState.CREATED if missing or count > 1:
            return on_create_failed(view, machine.name, _NOT_LISTED if missing else _DUPLICATE, now)
        case MachineState.JOINED if missing or count > 1:
            return abandon_machine(machine, _UNKNOWN if missing else _DUPLICATE, now)
        case _:
            return NO_CHANGE


def _remove_unknown(view: View, cluster: str, listing: ProviderListing, now: Instant) -> Iterator[Plan]:
    """Machines that we created and no longer know: they count towards the limit, and are removed."""
    known = view.clusters.get(cluster)
    for name in sorted(listing.counts):
        # Only names that this cluster has given out: a provider may list machines of others.
        if name in view.machines or known is None or not known.has_requested(name):
            continue
        extra, place = listing.counts[name] - 1, listing.places[name]
        state, at_ms = MachineState.LEAVING, now.ms
        machine = Machine(name, cluster, state, at_ms, at_ms, reason=_UNATTRIBUTED, place=place, extra=extra)
        why = f"machine {name} goes: {_UNATTRIBUTED}"
        yield Plan((machine,), events=(EventRecord("cluster.machine_lost", why, cluster=cluster),), why=why)


def on_list_failed(view: View, cluster: str, reason: str, now: Instant) -> Plan:
    """The list failed: machines reported as removed count until a list confirms it."""
    known = view.clusters.get(cluster)
    if known is None:
        return NO_CHANGE
    why = f"machines of cluster {cluster} cannot be listed: {reason}"
    last = f"its machines cannot be listed: {reason}"
    failed = (with_provider_failure(view, known, last, now.ms, now),) if is_stuck(view, known) else ()
    return Plan(failed, events=(EventRecord("cluster.machine_failed", why, cluster=cluster),), why=why)
