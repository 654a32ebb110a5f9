"""An external controller that decides on lost tasks of some jobs; it may be late, and forgets on death."""

from typing import Any

from rota.apiserver.admission.recovery import LossResolution, resolve_losses
from rota.apiserver.streams.event_cursor import SequencedEvent
from rota.model.errors import Rejected
from rota.model.plan import Instant, Plan
from rota.model.recovery import RecoveryDecision
from rota.model.view import View
from rota.sim.cluster.server import SimServer
from rota.sim.cluster.subscribers import SimSubscriber
from rota.sim.cluster.users import ADMIN

CONTROLLER = "b"  # the subscriber that recovers some jobs
OWNER = f"{ADMIN.name}:{CONTROLLER}"
DECISIONS = (*(RecoveryDecision.RETRY,) * 5, *RecoveryDecision)
LATE_MS = (0, 100, 3_000, 20_000)  # delays of its decision


class SimRecoveryController(SimSubscriber):
    """Sends one decision per task.unresolved event; if that is lost, the server asks again."""

    def act(self, happened: SequencedEvent) -> None:
        event = happened.event
        if event.kind != "task.unresolved":
            return
        assert event.job is not None
        assert event.attempt is not None
        self.world.count("recovery: controller was asked")
        indices = tuple(index for first, last in event.indices for index in range(first, last + 1))
        resolution = LossResolution(CONTROLLER, event.job, indices, event.attempt, self.rng.choice(DECISIONS))
        self.after(self.rng.choice(LATE_MS), lambda: self._send(resolution))

    def _send(self, resolution: LossResolution) -> None:
        server = self.rng.choice(self.servers)

        def command(view: View, _: Instant) -> Plan[object]:
            return resolve_losses(view, resolution, ADMIN)

        def refused(error: Any) -> None:
            if isinstance(error, Rejected):
                self.world.count("recovery: decision came too late or contradicted another")

        def answered(_: Any) -> None:
            self.world.count(f"recovery: decided {resolution.decision}")

        assert isinstance(server, SimServer)
        self.network.call(self.name, server, lambda: server.ask("apiserver", command, answered, refused))
