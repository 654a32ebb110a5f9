"""A controller from outside that owns the recovery of some jobs: it answers late, forgets when it dies."""

from typing import Any

from rota.apiserver.admission.recovery import LossResolution, resolve_losses
from rota.apiserver.streams.event_cursor import SequencedEvent
from rota.model.errors import Rejected
from rota.model.ids import JobId
from rota.model.plan import Instant, Plan
from rota.model.recovery import RecoveryDecision
from rota.model.view import View
from rota.sim.server import SimServer
from rota.sim.subscribers import SimSubscriber
from rota.sim.users import ADMIN

CONTROLLER = "b"  # the subscriber that owns the recovery of some jobs
OWNER = f"{ADMIN.name}:{CONTROLLER}"
WORDS = (*(RecoveryDecision.RETRY,) * 5, *RecoveryDecision)
LATE_MS = (0, 100, 3_000, 20_000)  # after which it has made up its mind


class SimRecoveryController(SimSubscriber):
    """It decides anew whenever it is told, and says so once: what is lost on the way it is asked again."""

    def act(self, happened: SequencedEvent) -> None:
        event = happened.event
        if event.kind != "task.unresolved":
            return
        assert event.job is not None
        assert event.attempt is not None
        self.world.count("owner: was asked")
        indices = tuple(index for first, last in event.indices for index in range(first, last + 1))
        said = LossResolution(CONTROLLER, event.job, indices, event.attempt, self.luck.choice(WORDS))
        self.after(self.luck.choice(LATE_MS), lambda: self._say(said))

    def _say(self, said: LossResolution) -> None:
        server = self.luck.choice(self.servers)

        def command(view: View, _: Instant) -> Plan[JobId]:
            return resolve_losses(view, said, ADMIN)

        def refused(error: Any) -> None:
            if isinstance(error, Rejected):
                self.world.count("owner: came too late, or contradicted itself")

        def answered(_: Any) -> None:
            self.world.count(f"owner: said {said.decision}")

        assert isinstance(server, SimServer)
        self.network.call(self.name, server, lambda: server.ask("apiserver", command, answered, refused))
