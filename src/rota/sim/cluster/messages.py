"""Messages between nodes, subscribers and servers, as the wire would carry them."""

from collections.abc import Callable
from typing import NamedTuple

from rota.apiserver.streams.event_cursor import EventCursor, SequencedEvent
from rota.model.ids import JobId, NodeId
from rota.model.messages import Hello, JobOrders, JobReports


class HelloMessage(NamedTuple):
    n: int
    node: NodeId  # from its certificate
    hello: Hello
    last_n: Callable[[], int]  # its latest sequence number: heartbeats are computed, not sent
    record_of: Callable[[JobId], bytes] = lambda _: b""  # its answer to Resubmit for a job


class ReportMessage(NamedTuple):
    n: int
    reports: list[JobReports]


class BeatMessage(NamedTuple):
    """A heartbeat; sent only by nodes that hold leases, whose renewal counts from it."""

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
    renews: bool = True  # leases are renewed as of when the echoed message was sent


class WatchRequest(NamedTuple):
    """A subscriber's request: events after a cursor, after the cursor stored under a name, or from now on."""

    after: EventCursor | None
    name: str | None
    subscriber: str | None = None  # its name, whichever cursor it resumes from


class WatchStarted(NamedTuple):
    at: EventCursor


class EventPageMessage(NamedTuple):
    events: list[SequencedEvent]


class WatchEnded(NamedTuple):
    at: EventCursor  # the expired cursor
    revision: int  # the server's latest revision
