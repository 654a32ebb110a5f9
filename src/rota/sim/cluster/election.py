"""Leader election among simulated servers: campaign for the leader key, renew its lease, step down."""

from collections.abc import Callable

from rota.engine.leadership import LeaseAction, LeaseTiming, lease_valid, next_step
from rota.model.limits import LEADER_TTL_SECONDS
from rota.sim.cluster.server import RESTART_MS, SimServer
from rota.sim.world.leader_key import KeyHolder, LeaderKey
from rota.sim.world.network import SimNetwork
from rota.sim.world.store import NAME, SimStore
from rota.sim.world.virtual_time import Act, World

TTL_MS = LEADER_TTL_SECONDS * 1000
TIMING = LeaseTiming(TTL_MS)
CAMPAIGN_MS = 1_000


class Election:
    """A single server leads immediately; of several, the holder of the leader key does."""

    def __init__(self, world: World, network: SimNetwork, store: SimStore, servers: list[SimServer]) -> None:
        self.world = world
        self.network = network
        self.store = store
        self.servers = servers
        self._key = LeaderKey(TTL_MS)
        if len(servers) > 1:
            store.key = self._key
        self._renewed_at_ms: dict[str, int] = {}
        self._tried_at_ms: dict[str, int] = {}
        for server in servers:
            server.on_deposed = self._restarts(server)
            server.may_renew = self._lease_valid(server)

    def start(self, server: SimServer) -> None:
        if server.alive:
            return
        server.start()
        if len(self.servers) == 1:
            server.lead()
        else:
            self._campaign(server)

    def kill(self, server: SimServer) -> None:
        if server.alive:
            server.kill()
            self.world.after(RESTART_MS, lambda: self.start(server))

    def revoke(self) -> None:
        """Expire the lease in the store: another server may lead before the current leader notices."""
        self._key.revoke()

    @property
    def leader(self) -> SimServer | None:
        """The leader whose epoch the store accepts, if any."""
        leading = [server for server in self.servers if server.alive and server.leads]
        return next((server for server in leading if server.epoch == self.store.epoch), None)

    def _restarts(self, server: SimServer) -> Act:
        return lambda: self.world.after(RESTART_MS, lambda: self.start(server))

    def _lease_valid(self, server: SimServer) -> Callable[[], bool]:
        """Return whether, by the server's own clock, its lease is certainly valid."""

        def is_valid() -> bool:
            alone = len(self.servers) == 1
            return alone or lease_valid(TIMING, self._renewed_at_ms[server.name], server.clock.boot_ms())

        return is_valid

    def _campaign(self, server: SimServer) -> None:
        before = self._key.last
        if self._reaches(server) and self._key.acquire(
            KeyHolder(server.name, server.life), self.world.now_ms
        ):
            if before is not None and before.name != server.name:
                self.world.count("election: another server took over")
            self._renewed_at_ms[server.name] = self._tried_at_ms[server.name] = server.clock.boot_ms()
            server.lead()
            self._hold(server)
        else:
            server.after(CAMPAIGN_MS, lambda: self._campaign(server))

    def _hold(self, server: SimServer) -> None:
        name, now_ms = server.name, server.clock.boot_ms()
        step = next_step(TIMING, self._renewed_at_ms[name], self._tried_at_ms[name], now_ms)
        match step.action:
            case LeaseAction.STEP_DOWN:
                self._step_down(server, "the store is unreachable")
            case LeaseAction.RENEW:
                # Before the call: a renewal that gets no answer must not be repeated without a pause.
                self._tried_at_ms[name] = now_ms
                self._renew(server, now_ms)
            case LeaseAction.WAIT:
                server.after(step.within_ms, lambda: self._hold(server))

    def _renew(self, server: SimServer, now_ms: int) -> None:
        if not self._reaches(server):
            self._hold(server)
        elif self._key.renew(KeyHolder(server.name, server.life), self.world.now_ms):
            # As of when the renewal was sent, not answered: the store counts the lease from an
            # earlier moment than the answer.
            self._renewed_at_ms[server.name] = now_ms
            self._hold(server)
        else:
            self._step_down(server, "its lease has expired")

    def _step_down(self, server: SimServer, reason: str) -> None:
        self.world.count("election: a leader stepped down")
        server.trace(f"steps down: {reason}")
        self.kill(server)

    def _reaches(self, server: SimServer) -> bool:
        return self.network.passes(server.name, NAME) and self.network.passes(NAME, server.name)
