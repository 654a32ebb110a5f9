"""What a standby serves: its own HTTP API, and ports that lead to the leader. [I/O]"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

from rota.apiserver.api import Addresses
from rota.apiserver.http import make_app
from rota.apiserver.standby import StandbyApp
from rota.config import ServerConfig
from rota.engine.run import Engine
from rota.identity.audit import AUDIT_FILE, AuditLog
from rota.identity.authority import CertificateAuthority
from rota.identity.vault import Vault
from rota.scheduler.round import SchedulerSettings
from rota.wire import service_names
from rota.wiring.api_context import ApiSources, ServerIdentity, StandbySources, make_api
from rota.wiring.gateway import admission
from rota.wiring.leadership.following import Following
from rota.wiring.leadership.leader_proxy import LeaderChannel, LeaderProxy
from rota.wiring.leadership.tunnel import Tunnel
from rota.wiring.listeners import ports
from rota.wiring.listeners.tls import ServerTls
from rota.wiring.process import shielded
from rota.wiring.server_record import ServerRecord

_CLOSE_SECONDS = 0.5


class Standby:
    """Serves from a mirror that follows the leader, and forwards what only the leader can do."""

    def __init__(
        self, config: ServerConfig, directory: Path, servers: Callable[[], list[ServerRecord]]
    ) -> None:
        self._config = config
        self._directory = directory
        self._servers = servers

    @contextlib.asynccontextmanager
    async def serving(
        self,
        engine: Engine,
        authority: CertificateAuthority,
        settings: SchedulerSettings,
        following: Following,
    ) -> AsyncIterator[None]:
        """Serve until the block is left; all ports are closed then, free for those of a leader."""
        served = ports.server_tls(self._config, authority, datetime.now(UTC))
        http_config = self._config.http_server
        socket = ports.bind_http(http_config.addr)
        vault = Vault.open(self._directory / "vault")
        forwarding = StandbyPorts(self._config, served, vault, following)
        audit = AuditLog(self._directory / AUDIT_FILE)
        addresses = Addresses(
            ports.with_port(http_config.addr, socket.getsockname()[1]),
            self._config.agent_server.addr,
            forwarding.controller_address,
            tuple(ports.host_names(self._config)),
        )
        limits = self._config.limits
        own = ServerIdentity(self._directory, authority, vault, addresses, served.expiries, audit, limits)
        nodes = ApiSources(StandbySources(), StandbySources(), None, self._servers)
        api = make_api(engine, own, settings, nodes, following)
        app = StandbyApp(make_app(api), following, vault, addresses, authority)
        web = ports.web_server(app, served, http_config)
        async with asyncio.TaskGroup() as tasks:
            web_task = tasks.create_task(web.serve(sockets=[socket]))
            renewing = tasks.create_task(served.keep_current())
            tunneling = tasks.create_task(forwarding.run())
            try:
                yield
            finally:
                # Ordering: first stop what uses the ports, then close
                # them; the leader that follows binds the same ones.
                renewing.cancel()
                tunneling.cancel()
                await shielded(forwarding.close())
                await shielded(_close_web(web, web_task))
                app.close()
                socket.close()
                audit.close()


async def _close_web(web: ports.WebServer, web_task: asyncio.Task[None]) -> None:
    web.should_exit = web.force_exit = True
    await asyncio.wait([web_task])
    await web.close_all()


class StandbyPorts:
    """Calls of controllers and workers are forwarded by a proxy, connections of agents by a tunnel."""

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
        """End all calls with UNAVAILABLE, and free the ports for the listeners of a leader."""
        self._proxy.close()
        await self._server.stop(_CLOSE_SECONDS)
        await self._channel.close()
