"""One node's connection, as a server keeps it."""

from rota.model.ids import JobId
from rota.model.messages import DrainRequest, JobOrders
from rota.sim.cluster.messages import BeatMessage, HelloMessage, LeaveMessage, ReportMessage
from rota.sim.world.network import SimStream
from rota.watcher.dispatch import DispatchState, Sealed, unsealed


class SimSession:
    def __init__(self, stream: SimStream, greeting: HelloMessage, sealed: Sealed = unsealed) -> None:
        self.node = greeting.node
        self.stream = stream
        self.boot_id = greeting.hello.boot_id
        self.told = DispatchState(greeting.hello.inventory, sealed=sealed)
        self.last_n = greeting.last_n
        self.heard_n = greeting.n
        self.stored_n = 0
        self.stored_told = 0
        self.echo_due = False
        self.busy = True  # a word of it is being decided
        self.greeted = False
        self.words: list[ReportMessage | BeatMessage | DrainRequest | LeaveMessage] = []
        self.orders: list[JobOrders] = []
        self.forget: list[JobId] = []
        self.over = False
