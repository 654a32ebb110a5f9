"""An outside controller and a server in this process, connected by a real gRPC channel."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from rota.apiserver.grpc.service import ControllerService
from rota.identity.tokens import Role
from rota.store.sqlite import SqliteStore
from rota.wire.generated import controller_pb2 as pb
from rota.wire.generated.controller_pb2_grpc import ControllerStub, add_ControllerServicer_to_server
from tests.apiserver.serving import FileSource, Serving, make_api, running


@dataclass
class Controller:
    """An outside controller: its stub and the server behind it."""

    server: Serving
    stub: Any

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.server.token}"),)

    def schedule(self, spec: dict[str, Any], **fields: Any) -> Any:
        request = pb.ScheduleRequest(spec_json=json.dumps(spec), **fields)
        return self.stub.Schedule(request, metadata=self.metadata)

    async def call(self, method: str, request: Any) -> Any:
        return await getattr(self.stub, method)(request, metadata=self.metadata)


@contextlib.asynccontextmanager
async def controller(
    directory: Path, role: Role = Role.SUBMITTER, *namespaces: str
) -> AsyncIterator[Controller]:
    async with running(SqliteStore(directory)) as engine:
        source = FileSource(directory)
        api = make_api(engine, directory, source)
        previous = next((token.id for token in api.vault.list_api_tokens()), None)  # after a restart
        token = api.vault.make_api_token("outside", role, namespaces or ("*",), 0, replaces=previous)
        grpc_server = grpc.aio.server()
        add_ControllerServicer_to_server(ControllerService(api), grpc_server)  # type: ignore[no-untyped-call]
        port = grpc_server.add_insecure_port("127.0.0.1:0")
        await grpc_server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = ControllerStub(channel)  # type: ignore[no-untyped-call]
                yield Controller(Serving(api, port, token, source, directory), stub)
        finally:
            await grpc_server.stop(None)
            api.audit.close()
