"""SchedulerService: the gRPC service at which workers register and deregister. [I/O]"""

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
MayEnter = Callable[[str], bool]  # whether a caller with this `authorization` is accepted
log = structlog.get_logger("rota.gateway")

_ADDRESS_MAX = 300  # a host name has at most 253 characters


class SchedulerService(pb_grpc.SchedulerServicer):
    """`success` in a reply means that the change is durable."""

    def __init__(
        self, engine: Engine, service: NodeService, may_enter: MayEnter, *, speaks_tls: bool
    ) -> None:
        self._engine = engine
        self._nodes = service
        self._may_enter = may_enter
        self._speaks_tls = speaks_tls

    def serve(self, server: grpc.aio.Server) -> None:
        """Add the service under its full name and under `Scheduler`, for workers that use no package."""
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
        log.warning("worker registration refused", address=request.address[:_ADDRESS_MAX], reason=reason)
        return pb.RegisterWorkerResponse(success=False)

    async def DeregisterWorker(
        self, request: pb.DeregisterWorkerRequest, context: Context
    ) -> pb.DeregisterWorkerResponse:
        await self._authorize(request, context)
        try:
            node = await self._engine.ask(
                "apiserver", lambda view, _: registration.deregister(view, request.workerID)
            )
            # Crash point: after a crash here the worker is not dialled any more, and its node becomes lost.
            if node is not None:
                await self._nodes.leave(node, "its worker deregistered")
        except RotaError as error:
            log.warning("deregistration not stored", worker=request.workerID[:60], reason=str(error))
            return pb.DeregisterWorkerResponse(success=False)
        return pb.DeregisterWorkerResponse(success=node is not None)

    async def _authorize(self, request: Any, context: Context) -> None:
        authorization = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not self._may_enter(str(authorization)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "off loopback this needs a token")
        try:
            bounds.check(request)
        except BadField as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{error} ({error.hint})")

    def _why_unusable(self, address: str) -> str | None:
        host, _, port = address.rpartition(":")
        if len(address) > _ADDRESS_MAX or not host or not is_port(port) or int(port) == 0:
            return "its address is not host:port"
        if not address.isascii() or not address.isprintable():
            return "its address has invalid characters"
        if not self._speaks_tls and not is_loopback(host.strip("[]")):
            return "plain text is for loopback only: set grpc_server.use_tls"
        return None
