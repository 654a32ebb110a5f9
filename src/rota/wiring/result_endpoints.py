"""Where tasks report what came of them, for each node and job: at any server there is. [I/O]"""

import platform
from collections.abc import Callable

from rota.config import HttpServerConfig
from rota.identity.authority import CertificateAuthority
from rota.model.ids import JobId, NodeId
from rota.model.result import ResultEndpoint
from rota.wiring.listeners import ports
from rota.wiring.server_record import ServerRecord

_EVERYWHERE = ("0.0.0.0", "::")  # as an address to listen at; nobody can call there


def result_endpoints(
    authority: CertificateAuthority,
    door: HttpServerConfig,
    address: str,
    servers: Callable[[], list[ServerRecord]],
) -> Callable[[NodeId, JobId], ResultEndpoint | None]:
    tokens = authority.task_tokens()
    is_tls = ports.uses_tls(door)
    host, port = ports.host_of(address), address.rpartition(":")[2]
    reached = f"{platform.node()}:{port}" if host in _EVERYWHERE else address
    url = f"{'https' if is_tls else 'http'}://{reached}"
    is_own = is_tls and door.crt_file is None

    def opened(node: NodeId, job: JobId) -> ResultEndpoint:
        others = tuple(card.url for card in servers() if card.url != url)
        ca = authority.bundle.roots_pem.decode() if is_own else ""
        return ResultEndpoint(url, tokens.key_for(job, node), node, ca, others)

    return opened
