"""What nodes and servers say on their streams, as the wire would carry it."""

from collections.abc import Callable
from typing import NamedTuple

from rota.model.ids import JobId, NodeId
from rota.model.sync import Hello, JobClaims, JobOrders


class Greeting(NamedTuple):
    n: int
    node: NodeId  # as its certificate says
    hello: Hello
    last_n: Callable[[], int]  # the number of its last word by now: beats are not sent one by one


class Reported(NamedTuple):
    n: int
    claims: list[JobClaims]


class Leave(NamedTuple):
    reason: str


class Welcome(NamedTuple):
    epoch: int


class Orders(NamedTuple):
    epoch: int
    echo: int
    stored: int
    jobs: list[JobOrders]
    forget: list[JobId]
