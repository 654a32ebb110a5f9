"""The cluster's authorities and secrets in one file, `ca.json`, which a rotation replaces atomically. [I/O]

Until the first rotation there is no such file, and a cluster has what releases before rotation had: `ca.key`,
`ca.pem`, and secrets that are derived from that key. Afterwards `ca.json` counts, and the two files beside it
are copies of the authority that signs, for tools and for a release that knows nothing else.

    stable ── start ──> overlap ── finish ──> stable
       └───────────── replace ──────────────────^

In the overlap both authorities are trusted, and the newer one signs. `replace` drops all trust in the older
one: in its certificates, in its links, and in the secrets of its time.
"""

import secrets
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rota.identity import bundles, certificates, files
from rota.identity.errors import NotRotating, Rotating, Unsafe

FILE, KEY_FILE, CERTIFICATE_FILE = "ca.json", "ca.key", "ca.pem"
VERSION = 1
CA_LIFE = timedelta(days=3650)
RETIRED_KEPT = 8  # a server that missed more rotations than this is taken for one of another cluster
MAX_FILE_BYTES = 65_536


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """One authority with its key."""

    key: str
    certificate: str
    made_at_ms: int

    def __repr__(self) -> str:
        return f"Root({certificates.fingerprint_of(self.x509)})"

    @property
    def x509(self) -> x509.Certificate:
        return certificates.only_certificate(self.certificate.encode())

    @property
    def private_key(self) -> ec.EllipticCurvePrivateKey:
        return certificates.key_from_pem(self.key.encode())


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """An authority that is no longer trusted, and whose key is deleted."""

    fingerprint: str
    key_id: str  # by which the certificates it signed refer to it
    retired_at_ms: int


class Keyring(msgspec.Struct, frozen=True, kw_only=True):
    """All authorities and secrets of a cluster at one moment."""

    version: int = VERSION
    current: Root
    previous: Root | None = None  # also trusted during a rotation
    started_at_ms: int = 0  # of the rotation
    overlap_until_ms: int = 0
    links: tuple[str, ...] = ()  # PEM, the newest first
    secrets: tuple[str, ...]  # the first one signs; signatures by the others are still accepted
    retired: tuple[Retired, ...] = ()  # the newest first

    def __repr__(self) -> str:
        return f"Keyring({self.current!r}, {self.previous!r})"  # no secret is ever printed

    @property
    def roots(self) -> tuple[Root, ...]:
        return (self.current,) if self.previous is None else (self.current, self.previous)

    @property
    def current_fingerprint(self) -> str:
        return certificates.fingerprint_of(self.current.x509)

    @property
    def is_rotated(self) -> bool:
        """Whether there is, or was, another authority than the current one."""
        return self.previous is not None or bool(self.retired)

    @property
    def fingerprints(self) -> frozenset[str]:
        """Fingerprints of all authorities that this cluster has or had."""
        own = (certificates.fingerprint_of(root.x509) for root in self.roots)
        return frozenset((*own, *(retired.fingerprint for retired in self.retired)))


def start_rotation(ring: Keyring, now: datetime, overlap: timedelta) -> Keyring:
    """Add an authority for which the old one vouches, and a secret; the old ones are still accepted."""
    if ring.previous is not None:
        raise Rotating("a rotation is already in progress")
    old = ring.current.x509
    new = _new_root(old.subject, old.not_valid_before_utc, now)
    link = bundles.linked(new.x509, old, ring.current.private_key)
    return msgspec.structs.replace(
        ring,
        current=new,
        previous=ring.current,
        started_at_ms=_ms(now),
        overlap_until_ms=_ms(now + overlap),
        links=(certificates.certificate_to_pem(link).decode(), *ring.links),
        secrets=(secrets.token_hex(32), *ring.secrets),
    )


def finish_rotation(ring: Keyring, now: datetime) -> Keyring:
    """Stop trusting the old authority, and delete its key.

    Its link stays until the next rotation is finished: a client or task that knows only the old authority
    goes on trusting the server. So does the secret of its time, since tasks started then may run for long.
    """
    if ring.previous is None:
        raise NotRotating("no rotation is in progress")
    return msgspec.structs.replace(
        ring,
        previous=None,
        started_at_ms=0,
        overlap_until_ms=0,
        links=ring.links[:1],
        secrets=ring.secrets[:2],
        retired=(_retired(ring.previous, now), *ring.retired)[:RETIRED_KEPT],
    )


def replace_root(ring: Keyring, now: datetime) -> Keyring:
    """Create an authority and drop trust in all others: for a key that may have leaked."""
    old = ring.current.x509
    new = _new_root(old.subject, old.not_valid_before_utc, now)
    retired = tuple(_retired(root, now) for root in ring.roots)
    return Keyring(
        current=new, secrets=(secrets.token_hex(32),), retired=(*retired, *ring.retired)[:RETIRED_KEPT]
    )


def open_keyring(directory: Path, now: datetime) -> Keyring:
    """The keyring of this directory, created if there is none. Completes a write that a crash interrupted."""
    files.own_directory(directory)
    with files.locked(directory, "ca"):
        # Crash point: the certificate is written last. Without it no one can have trusted this CA yet.
        if not (directory / CERTIFICATE_FILE).exists() and not (directory / FILE).exists():
            _make(directory, now)
        ring = read(directory)
        if (directory / FILE).exists():
            _copy(directory, ring)
        end = ring.current.x509.not_valid_after_utc
        if end <= now:
            raise Unsafe(f"the cluster's CA expired on {end:%Y-%m-%d}: {_remedy(directory)}")
        return ring


def read(directory: Path) -> Keyring:
    path = directory / FILE
    if not path.exists():
        return _read_pair(directory)
    return decoded(files.read_private(path, MAX_FILE_BYTES), str(path))


def decoded(content: bytes, where: str) -> Keyring:
    try:
        ring = msgspec.json.decode(content, type=Keyring)
        for root in ring.roots:
            if not certificates.belong_together(root.private_key, root.x509):
                raise ValueError("a key does not belong to its certificate")
        if ring.version <= VERSION and ring.secrets:
            return ring
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unsafe(f"{where} is damaged ({error}): restore it from a backup") from error
    raise Unsafe(f"{where} was written by a newer Rota (version {ring.version}, this one reads {VERSION})")


def encoded(ring: Keyring) -> bytes:
    return msgspec.json.encode(ring)


def write(directory: Path, ring: Keyring) -> None:
    """Write the keyring; needs the lock. It takes effect in the moment in which `ca.json` is replaced."""
    # Crash point between the files: `open_keyring` writes the copies again.
    if ring.is_rotated:
        files.write_private(directory / FILE, msgspec.json.format(encoded(ring)))
    _copy(directory, ring)


def _copy(directory: Path, ring: Keyring) -> None:
    pair = ((KEY_FILE, ring.current.key), (CERTIFICATE_FILE, ring.current.certificate))
    for name, text in pair:
        path = directory / name
        if not path.exists() or files.read_private(path, MAX_FILE_BYTES) != text.encode():
            files.write_private(path, text.encode())


def _make(directory: Path, now: datetime) -> None:
    # A unique name, so that a verifier that holds the CAs of two clusters picks the right one.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Rota CA {secrets.token_hex(4)}")])
    root = _new_root(name, now - certificates.CLOCK_SKEW, now)
    # Ordering: the key first, see the crash point in `open_keyring`.
    files.write_private(directory / KEY_FILE, root.key.encode())
    files.write_private(directory / CERTIFICATE_FILE, root.certificate.encode())


def _new_root(name: x509.Name, begin: datetime, now: datetime) -> Root:
    """Create an authority. It is valid since the first one is, so that a clock set back locks no node out."""
    key = certificates.new_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(begin, now))
        .not_valid_after(now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(certificates.usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificates.certificate_to_pem(certificate)
    return Root(key=certificates.key_to_pem(key).decode(), certificate=pem.decode(), made_at_ms=_ms(now))


def _read_pair(directory: Path) -> Keyring:
    """The two files of a cluster whose CA was never rotated: its secrets are derived from the key."""
    certificate_path, key_path = directory / CERTIFICATE_FILE, directory / KEY_FILE
    remedy = _remedy(directory)
    try:
        certificate = certificates.only_certificate(files.read_private(certificate_path, MAX_FILE_BYTES))
        key = certificates.key_from_pem(files.read_private(key_path, MAX_FILE_BYTES))
    except FileNotFoundError as error:
        raise Unsafe(f"the cluster's CA has lost its key {key_path}: {remedy}") from error
    except Unsafe:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: a key with a password
        raise Unsafe(f"the cluster's CA in {directory} cannot be read: {remedy}") from error
    if not certificates.belong_together(key, certificate):
        raise Unsafe(f"{key_path} is not the key of {certificate_path}: {remedy}")
    return unrotated(certificates.key_to_pem(key), certificates.certificate_to_pem(certificate))


def unrotated(key_pem: bytes, cert_pem: bytes) -> Keyring:
    begin = certificates.only_certificate(cert_pem).not_valid_before_utc
    root = Root(key=key_pem.decode(), certificate=cert_pem.decode(), made_at_ms=_ms(begin))
    return Keyring(current=root, secrets=(root.key,))


def _remedy(directory: Path) -> str:
    pair = directory / CERTIFICATE_FILE
    return f"restore both from a backup, or remove {pair} to start over (all nodes then have to join again)"


def _retired(root: Root, now: datetime) -> Retired:
    certificate = root.x509
    return Retired(
        fingerprint=certificates.fingerprint_of(certificate),
        key_id=certificates.key_id_of(certificate),
        retired_at_ms=_ms(now),
    )


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
