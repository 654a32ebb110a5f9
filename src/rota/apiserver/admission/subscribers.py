"""Cursors of event subscribers: where each goes on, and what it has acknowledged."""

from collections.abc import Mapping

from rota.apiserver.access import Caller
from rota.apiserver.spec import fields
from rota.apiserver.streams.event_cursor import EventCursor
from rota.model.errors import QueueFull
from rota.model.plan import Plan
from rota.model.subscriber import Subscriber

SUBSCRIBERS_MAX = 1000  # each is one record for ever


def acknowledge_events(
    known: Mapping[str, Subscriber], name: str, revision: int, index: int, owner: str = ""
) -> Plan[Subscriber]:
    """Positions only grow: a late or repeated acknowledgement changes nothing.

    One that a former holder of the name has left is replaced by the caller's own.
    """
    before = known.get(name)
    if before is not None and not before.belongs_to(owner):
        before = None
    if before is not None and (revision, index) <= (before.revision, before.index):
        return Plan(answer=before)
    if name not in known and len(known) >= SUBSCRIBERS_MAX:
        raise QueueFull(f"there are {len(known)} subscribers already", field="subscriber")
    subscriber = Subscriber(name, revision, index, owner)
    return Plan((subscriber,), answer=subscriber)


def subscriber_name(caller: Caller, name: str) -> str:
    """Nobody can move another token's position."""
    return f"{caller.name}:{fields.name('subscriber', name)}"


def subscribe(
    known: Mapping[str, Subscriber], name: str, now: EventCursor, owner: str = ""
) -> Plan[Subscriber]:
    """Where a subscriber goes on: behind what it acknowledged; from now on the first time it is heard of.

    Who no longer leads may know an older place only, and must not answer.
    """
    before = known.get(name)
    if before is not None and before.belongs_to(owner):
        return Plan(answer=before, fenced=True)
    return acknowledge_events(known, name, now.revision, now.index, owner)
