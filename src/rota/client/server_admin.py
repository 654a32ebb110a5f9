"""What a server is asked about itself: how it is, what it can do, and for a copy of what it keeps."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from rota.client.backoff import RetryBackoff
from rota.client.errors import Unavailable
from rota.client.server_views import Accepted, Server
from rota.client.transport import ApiRequest, Transport
from rota.client.views import read

BACKUP_SILENCE_SECONDS = 60.0  # a large store is read as a whole before its first byte is sent
COPY_BYTES = 1 << 20


class Upkeep:
    transport: Transport

    def server(self) -> Server:
        """Who leads, since when, and how its store answers."""
        return read(Server, self.transport.call(ApiRequest("GET", "/v1/server")))

    def is_alive(self) -> bool:
        """Whether a server answers at all; asked once."""
        return self._says_yes("/healthz")

    def is_ready(self) -> bool:
        """Whether one leads and its store works; asked once."""
        return self._says_yes("/readyz")

    def metrics(self) -> str:
        """Its figures, as Prometheus reads them."""
        return self._text("/metrics", "text/plain")

    def openapi(self) -> dict[str, Any]:
        """All that can be asked of this server, as an OpenAPI document."""
        described: dict[str, Any] = self.transport.call(ApiRequest("GET", "/v1/openapi.json"))
        return described

    def back_up(self, into: BinaryIO) -> None:
        """Write a backup of all the server keeps, as of one moment; `rota store check` says if it is good."""
        pauses = RetryBackoff(self.transport.patience_seconds, self.transport.on_wait)
        begun = False
        while True:
            try:
                for piece in self._backup():
                    begun = True
                    into.write(piece)
                return
            except Unavailable as problem:
                if begun:  # half of it is written: another would not fit to it
                    raise
                pauses.wait(problem)

    def accept_nodes(self) -> Accepted:
        """Say that no other server leads the nodes that are refused here: they may follow this one."""
        return read(Accepted, self.transport.call(ApiRequest("POST", "/v1/store/accept", body={})))

    def _backup(self) -> Iterator[bytes]:
        request = ApiRequest("GET", "/v1/store/backup", headers={"Accept": "application/octet-stream"})
        with self.transport.download(request, BACKUP_SILENCE_SECONDS) as body:
            while piece := body.read(COPY_BYTES):
                yield piece

    def _says_yes(self, path: str) -> bool:
        try:
            self.transport.call(ApiRequest("GET", path), patience_seconds=0)
        except Unavailable:
            return False
        return True

    def _text(self, path: str, media_type: str) -> str:
        answer = self.transport.fetch(ApiRequest("GET", path, headers={"Accept": media_type}))
        return answer.body.decode("utf-8", "replace")
