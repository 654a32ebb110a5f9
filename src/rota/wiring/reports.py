"""Where tasks report what came of them, for each node and job: at any server there is. [I/O]"""

import platform
from collections.abc import Callable

from rota.config import HttpServer
from rota.identity.authority import Authority
from rota.model.ids import JobId, NodeId
from rota.model.result import ReportDoor
from rota.wiring import doors
from rota.wiring.cards import Card

_EVERYWHERE = ("0.0.0.0", "::")  # as an address to listen at; nobody can call there


def report_door(
    authority: Authority, door: HttpServer, address: str, servers: Callable[[], list[Card]]
) -> Callable[[NodeId, JobId], ReportDoor | None]:
    tokens = authority.task_tokens()
    is_tls = doors.speaks_tls(door)
    host, port = doors.host_of(address), address.rpartition(":")[2]
    reached = f"{platform.node()}:{port}" if host in _EVERYWHERE else address
    url = f"{'https' if is_tls else 'http'}://{reached}"
    is_own = is_tls and door.crt_file is None

    def opened(node: NodeId, job: JobId) -> ReportDoor:
        others = tuple(card.url for card in servers() if card.url != url)
        ca = authority.bundle.roots_pem.decode() if is_own else ""
        return ReportDoor(url, tokens.key_for(job, node), node, ca, others)

    return opened
