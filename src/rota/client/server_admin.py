"""`cluster.server`: status and health of the servers, metrics, the OpenAPI document, backups."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from rota.client.backoff import RetryBackoff
from rota.client.errors import Unavailable
from rota.client.server_views import Accepted, Server
from rota.client.transport import ApiRequest, Transport
from rota.client.views import read

BACKUP_SILENCE_SECONDS = 60.0  # the server reads a large store as a whole before it sends the first byte
COPY_BYTES = 1 << 20


class ServerAdmin:
    """The server that answers, normally the leader."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def status(self) -> Server:
        """The leader, its epoch, and the state and latency of its store."""
        return read(Server, self._transport.call(ApiRequest("GET", "/v1/server")))

    def is_alive(self) -> bool:
        """Whether a server answers at all; sends one request."""
        return self._is_ok("/healthz")

    def is_ready(self) -> bool:
        """Whether a server leads and its store works; sends one request."""
        return self._is_ok("/readyz")

    def metrics(self) -> str:
        """The metrics of the server in the Prometheus text format."""
        return self._text("/metrics", "text/plain")

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of this server."""
        described: dict[str, Any] = self._transport.call(ApiRequest("GET", "/v1/openapi.json"))
        return described

    def back_up(self, into: BinaryIO) -> None:
        """Write a consistent backup of the whole store; `rota store check` verifies it."""
        backoff = RetryBackoff(self._transport.patience_seconds, self._transport.on_wait)
        written = False
        while True:
            try:
                for chunk in self._backup():
                    written = True
                    into.write(chunk)
                return
            except Unavailable as problem:
                # A retry would read a later revision: its bytes do not continue those already written.
                if written:
                    raise
                backoff.wait(problem)

    def accept_nodes(self) -> Accepted:
        """Confirm that no other server leads the nodes refused after a restore: they may join this one."""
        return read(Accepted, self._transport.call(ApiRequest("POST", "/v1/store/accept", body={})))

    def _backup(self) -> Iterator[bytes]:
        request = ApiRequest("GET", "/v1/store/backup", headers={"Accept": "application/octet-stream"})
        with self._transport.download(request, BACKUP_SILENCE_SECONDS) as body:
            while chunk := body.read(COPY_BYTES):
                yield chunk

    def _is_ok(self, path: str) -> bool:
        try:
            self._transport.call(ApiRequest("GET", path), patience_seconds=0)
        except Unavailable:
            return False
        return True

    def _text(self, path: str, media_type: str) -> str:
        answer = self._transport.fetch(ApiRequest("GET", path, headers={"Accept": media_type}))
        return answer.body.decode("utf-8", "replace")
