"""The gRPC and agent ports of a server that stands by: both lead to the one that leads. [I/O]"""

from rota.config import ServerConfig
from rota.identity.vault import Vault
from rota.wire import service_names
from rota.wiring.gateway import admission
from rota.wiring.leadership.following import Following
from rota.wiring.leadership.leader_proxy import LeaderChannel, LeaderProxy
from rota.wiring.leadership.tunnel import Tunnel
from rota.wiring.listeners import ports
from rota.wiring.listeners.tls import ServerTls

_HANG_UP_SECONDS = 0.5


class StandbyPorts:
    """Controllers and workers are served by a proxy, agents by a tunnel."""

    def __init__(self, config: ServerConfig, served: ServerTls, vault: Vault, following: Following) -> None:
        own_address = config.agent_server.addr
        self._channel = LeaderChannel(following, own_address, lambda: served.signed.pair)
        may_register = admission(config, vault)
        workers = service_names.WORKERS if config.worker_gateway.enabled else ()

        def admit(service: str, authorization: str) -> bool:
            return service not in service_names.WORKERS or may_register(authorization)

        self._proxy = LeaderProxy((service_names.CONTROLLER, *workers), self._channel, admit)
        self._server = ports.grpc_server(ports.controller_limits(config.grpc_server))
        self._server.add_generic_rpc_handlers((self._proxy,))
        self.controller_address = ports.open_controller_port(self._server, config, served)
        self._tunnel = Tunnel(own_address, self._channel.leader, self._channel.changed)

    async def run(self) -> None:
        await self._server.start()
        await self._tunnel.run()

    async def close(self) -> None:
        """Calls end with UNAVAILABLE before the ports are free for the doors of a leader."""
        self._proxy.close()
        await self._server.stop(_HANG_UP_SECONDS)
        await self._channel.close()
