"""Endpoints and keys by which tasks report results, for each node and job. [I/O]"""

import platform
from collections.abc import Callable

from rota.config import HttpServerConfig
from rota.identity.authority import CertificateAuthority
from rota.model.ids import JobId, NodeId
from rota.model.result import ResultEndpoint
from rota.wiring.listeners import ports
from rota.wiring.server_record import ServerRecord

_EVERYWHERE = ("0.0.0.0", "::")  # addresses to listen at, which clients cannot connect to


def result_endpoints(
    authority: CertificateAuthority,
    listener: HttpServerConfig,
    address: str,
    servers: Callable[[], list[ServerRecord]],
) -> Callable[[NodeId, JobId], ResultEndpoint | None]:
    tokens = authority.task_tokens()
    is_tls = ports.uses_tls(listener)
    host, port = ports.host_of(address), address.rpartition(":")[2]
    reached = f"{platform.node()}:{port}" if host in _EVERYWHERE else address
    url = f"{'https' if is_tls else 'http'}://{reached}"
    signed_here = is_tls and listener.crt_file is None

    def endpoint(node: NodeId, job: JobId) -> ResultEndpoint:
        others = tuple(record.url for record in servers() if record.url != url)
        ca = authority.bundle.roots_pem.decode() if signed_here else ""
        return ResultEndpoint(url, tokens.key_for(job, node), node, ca, others)

    return endpoint
