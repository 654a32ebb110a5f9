"""The addresses of the servers: tried one after the other until the leader answers."""

from urllib.parse import SplitResult, urlsplit

from rota.client.context import Endpoint
from rota.client.errors import Rejected
from rota.model.names import is_loopback

ANSWER_SECONDS = 30.0
ANOTHER_SECONDS = 5.0  # with several servers: one that hangs must not delay the others
_STANDBY_STATUS = 503


class ServerRotation:
    """The current server and the next ones. Threads may share it.

    `rotate_from` names the address that failed: two threads that see the same failure rotate only once.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._addresses = tuple(_address(text) for text in endpoint.addr.split(","))
        self._at = 0
        self._failures = 0
        if any(not " " < letter < "\x7f" for letter in endpoint.token):
            raise Rejected(
                "unauthenticated", "the token contains characters that no token has", field="token"
            )

    @property
    def current(self) -> SplitResult:
        return self._addresses[self._at]

    @property
    def are_secure(self) -> bool:
        return any(address.scheme == "https" for address in self._addresses)

    @property
    def answer_seconds(self) -> float:
        return ANSWER_SECONDS if len(self._addresses) == 1 else ANOTHER_SECONDS

    def is_current(self, host: str, port: int | None) -> bool:
        return _is_at(self.current, host, port)

    def answered(self, host: str, port: int | None, status: int) -> None:
        # 503 is the answer of a standby without a leader, or of a server that cannot
        # commit: another one may lead.
        if status != _STANDBY_STATUS:
            self._failures = 0
        elif self.is_current(host, port):
            self.rotate_from(self.current)

    def rotate_from(self, address: SplitResult) -> None:
        # By identity of the address that failed: a second thread that saw the same
        # failure must not skip a server.
        if address is self.current:
            self._at = (self._at + 1) % len(self._addresses)
            self._failures += 1

    def all_were_tried(self) -> bool:
        """Whether every server has failed since the last answer: now back off."""
        # No pause between two servers of one pass: the leader may be the next one.
        return self._failures % len(self._addresses) == 0


def _is_at(address: SplitResult, host: str, port: int | None) -> bool:
    default = 443 if address.scheme == "https" else 80
    return (address.hostname, address.port or default) == (host, port or default)


def _address(text: str) -> SplitResult:
    address = urlsplit(text.rstrip("/"))
    try:
        usable = (
            address.scheme in ("http", "https")
            and address.hostname
            and (address.port is None or address.port)
        )
    except ValueError:
        usable = False
    if not usable:
        raise Rejected(
            "bad_field",
            f"addr: {text!r} is not an address",
            field="addr",
            hint="write http://127.0.0.1:3000 or https://host:port",
        )
    # Checked before the first request: afterwards the token would have been sent.
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        raise Rejected(
            "not_allowed",
            f"refusing to send a token in plain text to {address.hostname}",
            field="addr",
            hint="write https://",
        )
    return address
