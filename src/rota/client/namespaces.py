"""`cluster.namespaces`: quotas, weights, defaults and bounds of groups of users."""

from collections.abc import Mapping
from typing import Any

from rota.client.server_views import Namespace
from rota.client.transport import ApiRequest, QueryValue, Transport, matching, segment
from rota.client.views import listed, read


class Namespaces:
    """The namespaces of a cluster, each with a name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, **query: QueryValue) -> list[Namespace]:
        """Namespaces that have settings or jobs; all, or a page by `limit` and `after`."""
        answer = self._transport.call(ApiRequest("GET", "/v1/namespaces", query))
        return [read(Namespace, item) for item in listed(answer, "namespaces")]

    def get(self, name: str) -> Namespace:
        """One namespace: its settings and what its jobs hold."""
        return read(Namespace, self._transport.call(ApiRequest("GET", _path(name))))

    def set(
        self,
        name: str,
        quota: Mapping[str, Any] | None = None,
        weight: int = 1,
        *,
        defaults: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        if_etag: str | None = None,
    ) -> Namespace:
        """Replace the quota and the weight of a namespace; a resource without a quota is unlimited.

        `defaults` are the requests of a task whose job gives none; `bounds` are `priority`, `tolerate`,
        `clusters`, `jobs`, `tasks` and `bytes`. Both replace what was set; None leaves it as it is.
        """
        body: dict[str, Any] = {"quota": dict(quota or {}), "weight": weight}
        body |= {} if defaults is None else {"defaults": dict(defaults)}
        body |= {} if bounds is None else {"bounds": dict(bounds)}
        request = ApiRequest("PUT", _path(name), body=body, headers=matching(if_etag))
        return read(Namespace, self._transport.call(request))

    def delete(self, name: str, *, if_etag: str | None = None) -> None:
        """Delete the settings of a namespace; its jobs keep running."""
        self._transport.call(ApiRequest("DELETE", _path(name), headers=matching(if_etag)))


def _path(name: str) -> str:
    return f"/v1/namespaces/{segment(name)}"
