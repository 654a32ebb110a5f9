"""The addresses of the servers, of which one leads: asked in turn until one answers."""

from urllib.parse import SplitResult, urlsplit

from rota.client.context import Endpoint
from rota.client.errors import Rejected
from rota.model.names import is_loopback

ANSWER_SECONDS = 30.0
ANOTHER_SECONDS = 5.0  # where there are others: one that hangs is left for them
_STANDS_BY = 503


class ServerRotation:
    """Threads may share it: whoever is turned from twice is turned from once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._addresses = tuple(_address(text) for text in endpoint.addr.split(","))
        self._at = 0
        self._in_vain = 0
        if any(not " " < letter < "\x7f" for letter in endpoint.token):
            raise Rejected("unauthenticated", "the token holds characters that no token has", field="token")

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
        if status != _STANDS_BY:
            self._in_vain = 0
        elif self.is_current(host, port):
            self.rotate_from(self.current)

    def rotate_from(self, address: SplitResult) -> None:
        if address is self.current:
            self._at = (self._at + 1) % len(self._addresses)
            self._in_vain += 1

    def all_were_tried(self) -> bool:
        """In vain, and it is time to wait."""
        return self._in_vain % len(self._addresses) == 0


def _is_at(address: SplitResult, host: str, port: int | None) -> bool:
    usual = 443 if address.scheme == "https" else 80
    return (address.hostname, address.port or usual) == (host, port or usual)


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
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        raise Rejected(
            "not_allowed",
            f"a token is not sent in plain text to {address.hostname}",
            field="addr",
            hint="write https://",
        )
    return address
