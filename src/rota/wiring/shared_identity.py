"""The CA and the tokens that all servers of a cluster share, in etcd. [I/O]"""

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rota.identity import files, keyring, vault
from rota.identity.authority import CertificateAuthority
from rota.identity.errors import Unsafe
from rota.identity.keyring import Keyring
from rota.identity.vault import Vault
from rota.model.errors import Unavailable
from rota.store.etcd.store import EtcdStore

_PUBLISH_SECONDS = 5.0
_CA, _VAULT = "ca", "vault"
_CA_FILES = (keyring.KEY_FILE, keyring.CERTIFICATE_FILE, keyring.FILE)


async def adopt_authority(store: EtcdStore, directory: Path) -> None:
    """Take over the CA in etcd, or publish our own if there is none. Raises Unsafe if they differ."""
    ca_directory = directory / "ca"
    # Read before the keyring is opened, which creates one.
    had_one = (ca_directory / keyring.CERTIFICATE_FILE).exists()
    shared = await store.members.read_shared(_CA)
    if shared is None or had_one:
        own = keyring.open_keyring(ca_directory, datetime.now(UTC))
        # Race between first servers: etcd keeps the first CA, and the others adopt it.
        shared = await store.members.put_if_absent(_CA, _from_ring(own))
        if had_one and own.current_fingerprint not in _to_ring(shared).fingerprints:
            raise Unsafe(f"{directory} holds the CA of another cluster than etcd: use an empty directory")
    files.own_directory(ca_directory)
    # The lock keeps a concurrent command on this directory from reading key and certificate of two CAs.
    with files.locked(ca_directory, "ca"):
        keyring.write(ca_directory, _to_ring(shared))


async def follow_authority(store: EtcdStore, authority: CertificateAuthority) -> None:
    """Apply the CA in etcd: rotated by the previous leader, or by us in a write whose answer was lost."""
    loop = asyncio.get_running_loop()

    def fetch() -> Keyring | None:
        # The authority calls `fetch` in its thread, under its lock; the call to etcd must run on the loop.
        shared = asyncio.run_coroutine_threadsafe(store.members.read_shared(_CA), loop).result(
            _PUBLISH_SECONDS
        )
        return None if shared is None else _to_ring(shared)

    try:
        await asyncio.to_thread(authority.follow, fetch)
    except TimeoutError:
        raise Unavailable("etcd does not answer which CA this cluster has") from None


def apply_shared(name: str, content: bytes | None, directory: Path, authority: CertificateAuthority) -> None:
    """Apply a change of tokens or CA that the leader published while this server is a standby."""
    if name == _VAULT and content is not None:
        files.write_private(directory / "vault" / vault.FILE, _unpacked(content))
    if name == _CA and content is not None:
        authority.apply_keyring(_to_ring(content))


def _from_ring(ring: Keyring) -> bytes:
    """The keyring as JSON; one that was never rotated in the format of versions without rotation."""
    contents = {keyring.KEY_FILE: ring.current.key, keyring.CERTIFICATE_FILE: ring.current.certificate}
    if ring.is_rotated:
        contents[keyring.FILE] = keyring.encoded(ring).decode()
    return json.dumps(contents).encode()


def _to_ring(shared: bytes) -> Keyring:
    contents: dict[str, str] = json.loads(shared)
    if keyring.FILE in contents:
        return keyring.decoded(contents[keyring.FILE].encode(), "the CA in etcd")
    return keyring.unrotated(contents[keyring.KEY_FILE].encode(), contents[keyring.CERTIFICATE_FILE].encode())


async def adopt_vault(store: EtcdStore, directory: Path) -> None:
    """Take over the tokens that the previous leader issued."""
    vault_directory = directory / "vault"
    Vault.open(vault_directory)
    shared = await store.members.read_shared(_VAULT)
    if shared is not None:
        files.write_private(vault_directory / vault.FILE, _unpacked(shared))


async def share(store: EtcdStore, contents: Mapping[str, bytes]) -> None:
    """Publish the files of a data directory or a backup, by their paths there."""
    own = {name: contents[f"ca/{name}"].decode() for name in _CA_FILES if f"ca/{name}" in contents}
    if own:
        await store.members.put_if_absent(_CA, _from_ring(_to_ring(json.dumps(own).encode())))
    if f"vault/{vault.FILE}" in contents:
        await store.members.put_if_absent(_VAULT, _packed(contents[f"vault/{vault.FILE}"]))


async def read_shared(store: EtcdStore) -> dict[str, bytes]:
    """The shared CA and tokens as files, by their paths in a data directory."""
    found: dict[str, bytes] = {}
    authority, tokens = await store.members.read_shared(_CA), await store.members.read_shared(_VAULT)
    if authority is not None:
        ca_files: dict[str, str] = json.loads(authority)
        found |= {f"ca/{name}": text.encode() for name, text in ca_files.items() if name in _CA_FILES}
    if tokens is not None:
        found[f"vault/{vault.FILE}"] = _unpacked(tokens)
    return found


def publisher(store: EtcdStore, loop: asyncio.AbstractEventLoop) -> Callable[[bytes], None]:
    """A function for other threads than the loop's that publishes the vault; durable on return."""

    def publish(content: bytes) -> None:
        _share(store, _VAULT, _packed(content), loop)

    return publish


def ring_publisher(store: EtcdStore, loop: asyncio.AbstractEventLoop) -> Callable[[Keyring], None]:
    """As `publisher`, for the CA."""

    def publish(ring: Keyring) -> None:
        _share(store, _CA, _from_ring(ring), loop)

    return publish


def _share(store: EtcdStore, name: str, content: bytes, loop: asyncio.AbstractEventLoop) -> None:
    # Bounded: this blocks a thread that holds the lock of the vault or the CA.
    asyncio.run_coroutine_threadsafe(store.share(name, content), loop).result(_PUBLISH_SECONDS)


def _packed(content: bytes) -> bytes:
    """The vault as it is stored: compressed, because etcd takes no value above 1.5 MiB."""
    return zlib.compress(content, 1)


def _unpacked(content: bytes) -> bytes:
    return zlib.decompress(content)
