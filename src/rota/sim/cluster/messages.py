"""What nodes, subscribers and servers say on their streams, as the wire would carry it."""

from collections.abc import Callable
from typing import NamedTuple

from rota.apiserver.streams.event_cursor import EventCursor, SequencedEvent
from rota.model.ids import JobId, NodeId
from rota.model.messages import Hello, JobOrders, JobReports


class HelloMessage(NamedTuple):
    n: int
    node: NodeId  # as its certificate says
    hello: Hello
    last_n: Callable[[], int]  # the number of its last word by now: beats are not sent one by one
    record_of: Callable[[JobId], bytes] = lambda _: b""  # its answer to Resubmit, of each job


class ReportMessage(NamedTuple):
    n: int
    claims: list[JobReports]


class BeatMessage(NamedTuple):
    """Said one by one only where leases are held, which count from it."""

    n: int


class LeaveMessage(NamedTuple):
    reason: str


class WelcomeMessage(NamedTuple):
    epoch: int


class OrdersMessage(NamedTuple):
    epoch: int
    echo: int
    stored: int
    jobs: list[JobOrders]
    forget: list[JobId]
    renews: bool = True  # leases count from when the echoed word was said


class WatchRequest(NamedTuple):
    """Of a subscriber: from where on; or by which name it is known; or from now on."""

    after: EventCursor | None
    name: str | None
    who: str | None = None  # it is, wherever it goes on from


class WatchStarted(NamedTuple):
    at: EventCursor


class EventPageMessage(NamedTuple):
    events: list[SequencedEvent]


class WatchEnded(NamedTuple):
    at: EventCursor  # from where nothing can be told
    revision: int  # as far as the server has come
