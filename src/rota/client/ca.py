"""`cluster.ca`: the certificate authority of the cluster and its rotation."""

from rota.client.server_views import Authority, CaRotation
from rota.client.transport import ApiRequest, Transport
from rota.client.views import read


class ClusterCa:
    """The certificate authority that signs the certificates of servers, nodes and watchers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self) -> Authority:
        """The certificates that the cluster trusts, and their fingerprint."""
        return read(Authority, self._transport.call(ApiRequest("GET", "/v1/ca")))

    def rotation(self) -> CaRotation:
        """The trusted authorities, and the nodes and watchers that still depend on the previous one."""
        return read(CaRotation, self._transport.call(ApiRequest("GET", "/v1/ca/rotation")))

    def rotate(self, overlap_seconds: str | float | None = None) -> CaRotation:
        """Sign with a new authority; the previous one stays trusted during the overlap."""
        body = {} if overlap_seconds is None else {"overlap_seconds": overlap_seconds}
        return read(CaRotation, self._transport.call(ApiRequest("POST", "/v1/ca/rotation", body=body)))

    def finish_rotation(self, *, force: bool = False) -> CaRotation:
        """End the overlap; refused while something needs the previous authority, except by `force`."""
        request = ApiRequest("POST", "/v1/ca/rotation/finish", body={"force": force})
        return read(CaRotation, self._transport.call(request))

    def replace(self) -> CaRotation:
        """Stop trusting every certificate signed so far: each node and watcher has to join again."""
        return read(CaRotation, self._transport.call(ApiRequest("POST", "/v1/ca/replace", body={})))
