"""What nodes, subscribers and servers say on their streams, as the wire would carry it."""

from collections.abc import Callable
from typing import NamedTuple

from rota.apiserver.feed import Happened, Position
from rota.model.ids import JobId, NodeId
from rota.model.sync import Hello, JobClaims, JobOrders


class Greeting(NamedTuple):
    n: int
    node: NodeId  # as its certificate says
    hello: Hello
    last_n: Callable[[], int]  # the number of its last word by now: beats are not sent one by one
    record_of: Callable[[JobId], bytes] = lambda _: b""  # its answer to Resubmit, of each job


class Reported(NamedTuple):
    n: int
    claims: list[JobClaims]


class Beat(NamedTuple):
    """Said one by one only where leases are held, which count from it."""

    n: int


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
    renews: bool = True  # leases count from when the echoed word was said


class Watch(NamedTuple):
    """Of a subscriber: from where on; or by which name it is known; or from now on."""

    after: Position | None
    name: str | None
    who: str | None = None  # it is, wherever it goes on from


class Begun(NamedTuple):
    at: Position


class Page(NamedTuple):
    events: list[Happened]


class Ended(NamedTuple):
    at: Position  # from where nothing can be told
    revision: int  # as far as the server has come
