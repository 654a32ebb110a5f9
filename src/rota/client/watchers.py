"""`cluster.watchers`: the processes that hold the connections of agents for the leader."""

from rota.client.server_views import Watcher
from rota.client.transport import ApiRequest, Transport, segment
from rota.client.views import listed, read


class Watchers:
    """The watchers of a cluster."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[Watcher]:
        """All watchers that have joined."""
        answer = self._transport.call(ApiRequest("GET", "/v1/watchers"))
        return [read(Watcher, item) for item in listed(answer, "watchers")]

    def remove(self, watcher: str) -> None:
        """Remove a watcher, by id or name; its certificate is refused from then on."""
        self._transport.call(ApiRequest("DELETE", f"/v1/watchers/{segment(watcher)}"))
