"""Reconciler: what every component offers the engine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rota.model.plan import Answer, Instant, Plan, Record
from rota.model.view import View

# A user's request or a node's report, bound to its arguments.
Command = Callable[[View, Instant], Plan[Answer]]
Keys = Callable[[Any], Iterable[str]]  # where to look after this record was written
Wakes = Mapping[type[Record], Keys]


class Reconciler(NamedTuple):
    """`wakes` says where to look after a change, `decide` looks."""

    name: str  # unique among reconcilers
    owner: str  # the component in whose name it writes
    wakes: Wakes
    decide: Callable[[View, str, Instant], Plan]
    start: Callable[[View], Iterable[str]]  # every key there is, for the first look after a start


def own_id(record: Any) -> Iterable[str]:
    """Look at the very job or node that was written."""
    return (record.id,)
