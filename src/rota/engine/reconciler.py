"""Reconciler: the interface between a component and the engine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rota.model.plan import Answer, Instant, Plan, Record
from rota.model.view import View

# A user's request or a node's report, bound to its arguments.
Command = Callable[[View, Instant], Plan[Answer]]
Keys = Callable[[Any], Iterable[str]]  # a record that was written -> the keys to wake
Wakes = Mapping[type[Record], Keys]


class Reconciler(NamedTuple):
    """One decision of a component, and when it has to be made.

    `decide` must be a function of its arguments: caches and timers inside a reconciler may be lost at any
    time. `wakes` maps types of records to the keys whose decision may change by such a record.
    """

    name: str  # unique among reconcilers
    owner: str  # the component as which it writes
    wakes: Wakes
    decide: Callable[[View, str, Instant], Plan]
    start: Callable[[View], Iterable[str]]  # every existing key, to be decided once after a start


def own_id(record: Any) -> Iterable[str]:
    """Wake the job or node whose record was written."""
    return (record.id,)
