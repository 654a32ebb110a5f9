"""Reconciler: what every component offers the engine."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rota.model.plan import Instant, Plan, Record
from rota.model.view import View

Command = Callable[[View, Instant], Plan]  # a user's request or a node's report, bound to its arguments


class Reconciler(NamedTuple):
    """`wakes` says where to look after a change, `decide` looks."""

    name: str  # unique among reconcilers
    owner: str  # the component in whose name it writes
    wakes: Callable[[Record], Iterable[str]]
    decide: Callable[[View, str, Instant], Plan]
    start: Callable[[View], Iterable[str]]  # every key there is, for the first look after a start
