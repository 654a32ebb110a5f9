"""Who leads: a key in the store with a lease, as etcd keeps it, and servers that stand for it."""

from collections.abc import Callable

from rota.sim.medium import NAME, Medium
from rota.sim.network import Network
from rota.sim.server import RESTART_MS, Server
from rota.sim.world import Act, World

TTL_MS = 10_000
RENEW_MS = 2_000
STEP_DOWN_MS = 8_000  # by its own clock, before the lease can have run out by the store's
CAMPAIGN_MS = 1_000


class Election:
    """One server alone leads at once; of several, whoever has the key."""

    def __init__(self, world: World, network: Network, medium: Medium, servers: list[Server]) -> None:
        self.world = world
        self.network = network
        self.medium = medium
        self.servers = servers
        self._holder: Server | None = None
        self._holder_life = 0
        self._expires_at_ms = 0
        self._renewed_at_ms: dict[str, int] = {}
        for server in servers:
            server.deposed = self._restarts(server)
            server.may_renew = self._surely_leads(server)

    def start(self, server: Server) -> None:
        if server.alive:
            return
        server.start()
        if len(self.servers) == 1:
            server.lead()
        else:
            self._campaign(server)

    def kill(self, server: Server) -> None:
        if server.alive:
            server.kill()
            self.world.after(RESTART_MS, lambda: self.start(server))

    def revoke(self) -> None:
        """The store takes the lease for run out: another may lead before the one that does has noticed."""
        self._expires_at_ms = self.world.now_ms

    @property
    def leader(self) -> Server | None:
        """The one that may write."""
        leading = [server for server in self.servers if server.alive and server.leads]
        return next((server for server in leading if server.epoch == self.medium.epoch), None)

    def _restarts(self, server: Server) -> Act:
        return lambda: self.world.after(RESTART_MS, lambda: self.start(server))

    def _surely_leads(self, server: Server) -> Callable[[], bool]:
        """By its own clock nobody else can have taken over."""

        def surely_leads() -> bool:
            alone = len(self.servers) == 1
            return alone or server.clock.boot_ms() - self._renewed_at_ms[server.name] < STEP_DOWN_MS

        return surely_leads

    def _campaign(self, server: Server) -> None:
        free = self._holder is None or self.world.now_ms >= self._expires_at_ms
        if free and self._reaches(server):
            if self._holder is not None and self._holder is not server:
                self.world.count("election: another server took over")
            self._holder, self._holder_life = server, server.life
            self._expires_at_ms = self.world.now_ms + TTL_MS
            self._renewed_at_ms[server.name] = server.clock.boot_ms()
            server.lead()
            server.after(RENEW_MS, lambda: self._renew(server))
        else:
            server.after(CAMPAIGN_MS, lambda: self._campaign(server))

    def _renew(self, server: Server) -> None:
        now_ms = server.clock.boot_ms()
        holds = self._holder is server and self._holder_life == server.life
        if self._reaches(server) and not (holds and self.world.now_ms < self._expires_at_ms):
            self._step_down(server, "its lease has run out")
        elif self._reaches(server):
            self._expires_at_ms = self.world.now_ms + TTL_MS
            self._renewed_at_ms[server.name] = now_ms
            server.after(RENEW_MS, lambda: self._renew(server))
        elif now_ms - self._renewed_at_ms[server.name] > STEP_DOWN_MS:
            self._step_down(server, "it cannot reach the store")
        else:
            server.after(CAMPAIGN_MS, lambda: self._renew(server))

    def _step_down(self, server: Server, reason: str) -> None:
        self.world.count("election: a leader stepped down")
        server.say(f"steps down: {reason}")
        self.kill(server)

    def _reaches(self, server: Server) -> bool:
        return self.network.passes(server.name, NAME) and self.network.passes(NAME, server.name)
