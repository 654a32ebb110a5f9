"""A controller from outside that owns the recovery of some jobs: it answers late, forgets when it dies."""

from typing import Any

from rota.apiserver.admit_loss import Said, resolve
from rota.apiserver.feed import Happened
from rota.model.errors import Rejected
from rota.model.plan import Instant, Plan
from rota.model.recovery import Word
from rota.model.view import View
from rota.sim.server import Server
from rota.sim.subscribers import Subscriber
from rota.sim.users import ADMIN

CONTROLLER = "b"  # the subscriber that owns the recovery of some jobs
OWNER = f"{ADMIN.name}:{CONTROLLER}"
WORDS = (*(Word.AGAIN,) * 5, *Word)
LATE_MS = (0, 100, 3_000, 20_000)  # after which it has made up its mind


class Outside(Subscriber):
    """It decides anew whenever it is told, and says so once: what is lost on the way it is asked again."""

    def act(self, happened: Happened) -> None:
        event = happened.event
        if event.kind != "task.unresolved":
            return
        assert event.job is not None
        assert event.attempt is not None
        self.world.count("owner: was asked")
        indices = tuple(index for first, last in event.indices for index in range(first, last + 1))
        said = Said(CONTROLLER, event.job, indices, event.attempt, self.luck.choice(WORDS))
        self.after(self.luck.choice(LATE_MS), lambda: self._say(said))

    def _say(self, said: Said) -> None:
        server = self.luck.choice(self.servers)

        def command(view: View, _: Instant) -> Plan:
            return resolve(view, said, ADMIN)

        def refused(error: Any) -> None:
            if isinstance(error, Rejected):
                self.world.count("owner: came too late, or contradicted itself")

        def answered(_: Any) -> None:
            self.world.count(f"owner: said {said.word}")

        assert isinstance(server, Server)
        self.network.call(self.name, server, lambda: server.ask("apiserver", command, answered, refused))
