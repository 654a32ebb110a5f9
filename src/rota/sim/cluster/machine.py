"""A machine of a node: its agent, its keeper, and faults of the whole machine."""

from rota.sim.cluster.agent import SimAgent
from rota.sim.cluster.host import SimHost
from rota.sim.cluster.keeper import SimKeeper
from rota.sim.world.network import SimNetwork
from rota.sim.world.virtual_time import World


class SimMachine(SimHost):
    def __init__(
        self, world: World, network: SimNetwork, name: str, capacity: dict[str, int], labels: dict[str, str]
    ) -> None:
        super().__init__(world, network, name, capacity, labels)
        self.scrapped = False
        self.keeper = SimKeeper(self)
        self.agent = SimAgent(self, self.keeper)
        self.clones = 0  # number made of it

    def switch_on(self) -> None:
        if self.scrapped:
            return
        self.on = True
        self.agent.start()

    def lose_power(self, keep: float) -> None:
        """Kill every process and lose part of what was not synced; `keep` is the share that survives."""
        self.on = False
        self.agent.vanish()
        self.keeper.end()
        for child in self.processes.live():
            self.process_ended(self.name, child)
        self.processes.children.clear()
        # Unsynced bytes may be lost: a result that was not synced must not have been acknowledged.
        self.disk.crash(keep)
        self.boot += 1

    def freeze(self) -> None:
        self.agent.freeze()
        self.keeper.freeze()
        self.network.check_streams(self.agent.name)

    def resume(self) -> None:
        if self.on:
            self.keeper.resume()
            self.agent.resume()
            self.network.check_streams(self.agent.name)

    def clone(self) -> "SimMachine":
        """Return a machine made from this one's disk image: same node, another boot and host name."""
        self.clones += 1
        name = f"{self.name}-clone{self.clones}"
        twin = SimMachine(self.world, self.network, name, self.capacity, self.labels)
        twin.node, twin.machine_id, twin.boot = self.node, self.machine_id, self.boot + 1000 * self.clones
        twin.disk = self.disk.copy()
        twin.epoch_seen = self.epoch_seen
        twin.behaviour_of, twin.process_started, twin.process_ended = (
            self.behaviour_of,
            self.process_started,
            self.process_ended,
        )
        twin.agent.dial = self.agent.dial
        return twin
