"""Join: a join line -> this node's certificate. The token is sent only to the CA of the join line. [I/O]"""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any, NamedTuple

from rota.identity.node_identity import NodeIdentity, check_fingerprint, make_request, store_identity
from rota.identity.tokens import JoinLine
from rota.model.errors import NotAllowed, Unavailable
from rota.model.names import is_loopback

_TIMEOUT_SECONDS = 30.0
_AUTHORITIES_MAX = 8


class JoinedNode(NamedTuple):
    identity: NodeIdentity
    agent_addresses: list[str]  # of all servers and watchers


def join(line: JoinLine, directory: Path, name: str, labels: dict[str, str]) -> JoinedNode:
    """Enroll this machine as a node and store its identity. Blocking: nothing can run before that."""
    body = {"csr": make_request(directory).decode(), "name": name, "labels": labels}
    answer = enroll(line, body)
    identity = store_identity(directory, answer["certificate"].encode(), answer["authorities"].encode())
    return JoinedNode(identity, answer.get("agent_addresses") or [answer["agent_address"]])


def enroll(line: JoinLine, body: dict[str, Any]) -> dict[str, Any]:
    """Send the token to a server with the CA of the join line, and return its answer. Blocking.

    During a rotation the server has two CAs, and the join line may name the older one: either is accepted.
    """
    published = _call(line, None, "GET", "/v1/ca", None)
    offered = (pem.encode() for pem in [published["ca"], *published.get("trusted", [])][:_AUTHORITIES_MAX])
    ca_pem = next((pem for pem in offered if check_fingerprint(pem, line.fingerprint)), None)
    if ca_pem is None:
        raise NotAllowed(
            f"{line.host}:{line.port} is not the server the join line was made for: its CA differs",
            hint="get a new line with `rota node token`",
        )
    trusted = ssl.create_default_context(cadata=ca_pem.decode())
    return _call(line, trusted, "POST", "/v1/enroll", {**body, "token": line.token})


def _call(
    line: JoinLine, trusted: ssl.SSLContext | None, method: str, path: str, body: dict[str, Any] | None
) -> dict[str, Any]:
    where = f"{line.host}:{line.port}"
    connection: http.client.HTTPConnection
    if is_loopback(line.host):
        connection = http.client.HTTPConnection(line.host, line.port, timeout=_TIMEOUT_SECONDS)
    else:
        context = trusted or _unverified()
        connection = http.client.HTTPSConnection(
            line.host, line.port, timeout=_TIMEOUT_SECONDS, context=context
        )
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read() or b"{}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"the server at {where} cannot be reached: {error}") from error
    finally:
        connection.close()
    if response.status >= 400:
        detail = answer.get("detail") or f"the server at {where} answered {response.status}"
        raise NotAllowed(detail, hint=answer.get("hint"))
    return answer


def _unverified() -> ssl.SSLContext:
    """TLS without verification, for the CA's certificate only: its fingerprint is checked before any secret
    is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
