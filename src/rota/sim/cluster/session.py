"""State of one node's stream on a server."""

from rota.model.ids import JobId
from rota.model.messages import DrainRequest, JobOrders
from rota.sim.cluster.messages import BeatMessage, HelloMessage, LeaveMessage, ReportMessage
from rota.sim.world.network import SimStream
from rota.watcher.dispatch import DispatchState, Sealed, unsealed


class SimSession:
    """Sequence numbers, pending messages and pending orders of one stream."""

    def __init__(self, stream: SimStream, message: HelloMessage, sealed: Sealed = unsealed) -> None:
        self.node = message.node
        self.stream = stream
        self.boot_id = message.hello.boot_id
        self.dispatch = DispatchState(message.hello.inventory, sealed=sealed)
        self.last_n = message.last_n
        self.received_n = message.n
        self.durable_n = 0
        self.acked_n = 0
        self.echo_due = False
        self.busy = True  # one of its messages is being decided
        self.hello_durable = False
        self.queue: list[ReportMessage | BeatMessage | DrainRequest | LeaveMessage] = []
        self.orders: list[JobOrders] = []
        self.forget: list[JobId] = []
        self.closed = False
