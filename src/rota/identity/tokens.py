"""Tokens as data: random secrets, their digests, roles, and the line that joins a node."""

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, urlsplit

import msgspec

from rota.identity.errors import IdentityRefused

API_PREFIX = "rota_"
JOIN_PREFIX = "join_"
SECRET_BYTES = 32
ID_LENGTH = 16  # of a join token's: hex digits of its digest
JOIN_SECRET = re.compile(JOIN_PREFIX + r"[A-Za-z0-9_-]{43}")  # 32 bytes in base64 without padding
ANY_SECRET = re.compile(rf"({API_PREFIX}|{JOIN_PREFIX})[A-Za-z0-9_-]{{32,}}")
TASK_SECRET = re.compile(r"(task_[\w.-]{1,160}\.)[0-9a-f]{64}")
FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


class Role(StrEnum):
    """Each role includes those before it: VIEWER < SUBMITTER < OPERATOR < ADMIN."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    # As strings "admin" < "viewer", so all four comparisons are overridden.
    def __lt__(self, other: str) -> bool:
        return self.rank < Role(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Role(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Role(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Role(other).rank


class JoinRole(StrEnum):
    """What the holder of a join token becomes."""

    NODE = "node"
    WATCHER = "watcher"


class StoredJoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """A join token without its secret."""

    digest: str
    made_at_ms: int
    expires_at_ms: int
    labels: dict[str, str]
    cluster: str
    used_by: str | None = None
    role: JoinRole = JoinRole.NODE
    addresses: tuple[str, ...] = ()  # networks in CIDR notation from which it may be used; empty: any
    revoked: bool = False

    @property
    def id(self) -> str:
        """The id by which it is listed and revoked; it reveals nothing of the secret, 256 random bits."""
        return self.digest[:ID_LENGTH]

    @staticmethod
    def id_of(secret: str) -> str:
        return digest(secret)[:ID_LENGTH]

    def allows(self, origin: str) -> bool:
        """Whether it may be used from this address."""
        if not self.addresses:
            return True
        try:
            address = ipaddress.ip_address(origin.partition("%")[0])
        except ValueError:
            return False
        # A dual-stack listener reports an IPv4 address as an IPv4-mapped IPv6 address.
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in ipaddress.ip_network(network) for network in self.addresses)


class JoinedWatcher(msgspec.Struct, frozen=True, kw_only=True):
    """A watcher that has joined, until it is removed."""

    id: str
    name: str
    joined_at_ms: int
    ca: str = ""  # fingerprint of the CA of the certificate it joined or last connected with

    def signed_by(self, ca: str) -> "JoinedWatcher":
        return msgspec.structs.replace(self, ca=ca)


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """An API token without its secret."""

    id: str
    digest: str
    name: str
    role: Role
    namespaces: tuple[str, ...]
    made_at_ms: int
    expires_at_ms: int | None = None
    owner: str = ""  # id of the first token in a chain of replacements; empty: this one

    @property
    def owned_by(self) -> str:
        """The owner of event cursors and names: the same for a token and those that replace it."""
        return self.owner or self.id

    def grants_as(self, other: "ApiToken") -> bool:
        """Whether both have the same name, rights and lifetime."""
        return self._grant == other._grant

    @property
    def _grant(self) -> tuple[object, ...]:
        life_ms = None if self.expires_at_ms is None else self.expires_at_ms - self.made_at_ms
        return self.name, self.role, self.namespaces, life_ms


@dataclass(frozen=True, slots=True)
class JoinLine:
    """The address to join at, the token, and the fingerprint of the CA to expect."""

    host: str
    port: int
    token: str = field(repr=False)
    fingerprint: str

    def render(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rota://{host}:{self.port}?token={self.token}&ca={self.fingerprint}"

    @classmethod
    def parse(cls, text: str) -> "JoinLine":
        """Parse a join line. Raises IdentityRefused, which names the part and never repeats the token."""
        line = text.strip()
        if not line.startswith("rota://"):
            raise IdentityRefused("join line: expected rota://HOST:PORT?token=...&ca=sha256:...")
        if re.search(r"\s", line):
            raise IdentityRefused("join line: expected one line without spaces; was it broken while pasting?")
        host, port = _address(line)
        values = _values(line)
        return cls(host, port, _join_secret(values), _fingerprint(values))


def new_secret(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def derive_secret(key: bytes, purpose: str) -> str:
    """A secret that is the same for the same purpose, and that only a holder of the key can derive."""
    derived = hmac.new(key, purpose.encode(), hashlib.sha256).digest()
    return API_PREFIX + base64.urlsafe_b64encode(derived).rstrip(b"=").decode()


def digest(secret: str) -> str:
    # 256 random bits cannot be guessed, so no slow hash is needed.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def matches(secret: str, expected_digest: str) -> bool:
    return hmac.compare_digest(digest(secret).encode(), expected_digest.encode())


def mask_secrets(text: str) -> str:
    """The text with everything that looks like a Rota secret masked."""
    return TASK_SECRET.sub(r"\1***", ANY_SECRET.sub(r"\1***", text))


def _address(line: str) -> tuple[str, int]:
    try:
        parts = urlsplit(line)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise IdentityRefused("join line: expected HOST:PORT with a port from 1 to 65535") from error
    if not host or "@" in parts.netloc:
        raise IdentityRefused("join line: expected HOST:PORT after rota://")
    if not port:
        raise IdentityRefused("join line: expected a port from 1 to 65535 after the host")
    if parts.path or parts.fragment:
        raise IdentityRefused("join line: expected '?token=' right after HOST:PORT, and nothing after the ca")
    return host, port


def _values(line: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(urlsplit(line).query, keep_blank_values=True, strict_parsing=True, max_num_fields=8)
    except ValueError as error:
        raise IdentityRefused("join line: expected ?token=...&ca=sha256:... after the port") from error
    names = [name for name, _ in pairs]
    for name in names:
        if name not in ("token", "ca"):
            raise IdentityRefused(f"join line: expected token and ca only, got {mask_secrets(name)[:40]!r}")
        if names.count(name) > 1:
            raise IdentityRefused(f"join line: {name} is given more than once")
    return dict(pairs)


def _join_secret(values: dict[str, str]) -> str:
    secret = values.get("token", "")
    if not secret:
        raise IdentityRefused("join line: token is missing")
    if secret.startswith(API_PREFIX):
        raise IdentityRefused(
            "join line: token is an API token; a join token starts with join_ (make one: rota node token)"
        )
    if not JOIN_SECRET.fullmatch(secret):
        raise IdentityRefused("join line: token is cut or changed; expected join_ and 43 characters")
    return secret


def _fingerprint(values: dict[str, str]) -> str:
    fingerprint = values.get("ca", "").lower()
    if not fingerprint:
        raise IdentityRefused(
            "join line: ca is missing; without it an impostor cannot be told from the server"
        )
    if not FINGERPRINT.fullmatch(fingerprint):
        raise IdentityRefused("join line: ca is cut or changed; expected sha256: and 64 hex digits")
    return fingerprint
