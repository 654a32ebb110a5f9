"""jobscheduler.Scheduler: workers register and say goodbye. [I/O]"""

import secrets
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from rota.engine.run import Engine
from rota.gateway import registration
from rota.gateway.generated import jobscheduler_pb2 as pb
from rota.gateway.generated import jobscheduler_pb2_grpc as pb_grpc
from rota.gateway.proxy_node import NodeService
from rota.model.errors import BadField, RotaError
from rota.model.names import is_loopback, is_port
from rota.model.node import Dialled
from rota.wire import bounds

Context = grpc.aio.ServicerContext[Any, Any]
MayEnter = Callable[[str], bool]  # whoever says this as `authorization`
log = structlog.get_logger("rota.gateway")

_ADDRESS_MAX = 300  # a host name has at most 253 characters


class SchedulerService(pb_grpc.SchedulerServicer):
    """`success` is the truth: it is on disk."""

    def __init__(self, engine: Engine, door: NodeService, may_enter: MayEnter, *, speaks_tls: bool) -> None:
        self._engine = engine
        self._nodes = door
        self._may_enter = may_enter
        self._speaks_tls = speaks_tls

    def serve(self, server: grpc.aio.Server) -> None:
        """Under both names."""
        pb_grpc.add_SchedulerServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated
        calls: dict[str, Any] = {
            "RegisterWorker": grpc.unary_unary_rpc_method_handler(
                self.RegisterWorker,
                request_deserializer=pb.RegisterWorkerRequest.FromString,
                response_serializer=pb.RegisterWorkerResponse.SerializeToString,
            ),
            "DeregisterWorker": grpc.unary_unary_rpc_method_handler(
                self.DeregisterWorker,
                request_deserializer=pb.DeregisterWorkerRequest.FromString,
                response_serializer=pb.DeregisterWorkerResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Scheduler", calls),))

    async def RegisterWorker(
        self, request: pb.RegisterWorkerRequest, context: Context
    ) -> pb.RegisterWorkerResponse:
        await self._authorize(request, context)
        reason = self._why_unusable(request.address)
        worker = Dialled(request.address, str(uuid.UUID(bytes=secrets.token_bytes(16), version=4)))
        if reason is None:
            try:
                await self._engine.ask(
                    "apiserver", lambda view, now: registration.register(view, worker, now)
                )
                return pb.RegisterWorkerResponse(success=True, workerID=worker.worker_id)
            except RotaError as error:
                reason = str(error)
        log.warning("a worker is refused", address=request.address[:_ADDRESS_MAX], reason=reason)
        return pb.RegisterWorkerResponse(success=False)

    async def DeregisterWorker(
        self, request: pb.DeregisterWorkerRequest, context: Context
    ) -> pb.DeregisterWorkerResponse:
        await self._authorize(request, context)
        try:
            node = await self._engine.ask(
                "apiserver", lambda view, _: registration.deregister(view, request.workerID)
            )
            if node is not None:
                await self._nodes.leave(node, "its worker said goodbye")
        except RotaError as error:
            log.warning("a goodbye could not be stored", worker=request.workerID[:60], reason=str(error))
            return pb.DeregisterWorkerResponse(success=False)
        return pb.DeregisterWorkerResponse(success=node is not None)

    async def _authorize(self, request: Any, context: Context) -> None:
        said = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not self._may_enter(str(said)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "off loopback this needs a token")
        try:
            bounds.check(request)
        except BadField as nonsense:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{nonsense} ({nonsense.hint})")

    def _why_unusable(self, address: str) -> str | None:
        host, _, port = address.rpartition(":")
        if len(address) > _ADDRESS_MAX or not host or not is_port(port) or int(port) == 0:
            return "its address is not host:port"
        if not address.isascii() or not address.isprintable():
            return "its address has characters that no address has"
        if not self._speaks_tls and not is_loopback(host.strip("[]")):
            return "plain text is for loopback only: set grpc_server.use_tls"
        return None
