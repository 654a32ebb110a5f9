"""What every server of a cluster must be known by: one CA and one vault, in etcd. [I/O]"""

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
    """The first server's CA is the cluster's; a directory that holds another belongs to another cluster."""
    place = directory / "ca"
    had_one = (place / keyring.CERTIFICATE_FILE).exists()
    shared = await store.members.read_shared(_CA)
    if shared is None or had_one:
        own = keyring.open_keyring(place, datetime.now(UTC))
        shared = await store.members.put_if_absent(_CA, _from_ring(own))
        if had_one and own.current_fingerprint not in _to_ring(shared).fingerprints:
            raise Unsafe(f"{directory} holds the CA of another cluster than etcd: use an empty directory")
    files.own_directory(place)
    with files.locked(place, "ca"):
        keyring.write(place, _to_ring(shared))


async def follow_authority(store: EtcdStore, authority: CertificateAuthority) -> None:
    """What the leader before has rotated is known here from now on; or we, where etcd did not say so."""
    loop = asyncio.get_running_loop()

    def fetch() -> Keyring | None:
        shared = asyncio.run_coroutine_threadsafe(store.members.read_shared(_CA), loop).result(
            _PUBLISH_SECONDS
        )
        return None if shared is None else _to_ring(shared)

    try:
        await asyncio.to_thread(authority.follow, fetch)
    except TimeoutError:
        raise Unavailable("etcd does not answer which CA this cluster has") from None


def take_shared(name: str, content: bytes | None, directory: Path, authority: CertificateAuthority) -> None:
    """What the leader gives out, or rotates, while we stand by."""
    if name == _VAULT and content is not None:
        files.write_private(directory / "vault" / vault.FILE, _unpacked(content))
    if name == _CA and content is not None:
        authority.apply_keyring(_to_ring(content))


def _from_ring(ring: Keyring) -> bytes:
    """As releases before rotation write it, which read a CA that was never rotated."""
    said = {keyring.KEY_FILE: ring.current.key, keyring.CERTIFICATE_FILE: ring.current.certificate}
    if ring.is_rotated:
        said[keyring.FILE] = keyring.encoded(ring).decode()
    return json.dumps(said).encode()


def _to_ring(shared: bytes) -> Keyring:
    said: dict[str, str] = json.loads(shared)
    if keyring.FILE in said:
        return keyring.decoded(said[keyring.FILE].encode(), "the CA in etcd")
    return keyring.unrotated(said[keyring.KEY_FILE].encode(), said[keyring.CERTIFICATE_FILE].encode())


async def adopt_vault(store: EtcdStore, directory: Path) -> None:
    """What the leader before gave out is known here from now on."""
    place = directory / "vault"
    Vault.open(place)
    shared = await store.members.read_shared(_VAULT)
    if shared is not None:
        files.write_private(place / vault.FILE, _unpacked(shared))


async def share(store: EtcdStore, kept: Mapping[str, bytes]) -> None:
    """What a data directory or a backup held; by its paths there."""
    own = {name: kept[f"ca/{name}"].decode() for name in _CA_FILES if f"ca/{name}" in kept}
    if own:
        await store.members.put_if_absent(_CA, _from_ring(_to_ring(json.dumps(own).encode())))
    if f"vault/{vault.FILE}" in kept:
        await store.members.put_if_absent(_VAULT, _packed(kept[f"vault/{vault.FILE}"]))


async def read_shared(store: EtcdStore) -> dict[str, bytes]:
    """The same, back."""
    found: dict[str, bytes] = {}
    authority, tokens = await store.members.read_shared(_CA), await store.members.read_shared(_VAULT)
    if authority is not None:
        said: dict[str, str] = json.loads(authority)
        found |= {f"ca/{name}": text.encode() for name, text in said.items() if name in _CA_FILES}
    if tokens is not None:
        found[f"vault/{vault.FILE}"] = _unpacked(tokens)
    return found


def publisher(store: EtcdStore, loop: asyncio.AbstractEventLoop) -> Callable[[bytes], None]:
    """For threads other than the loop's: returns when etcd has it."""

    def publish(content: bytes) -> None:
        _share(store, _VAULT, _packed(content), loop)

    return publish


def ring_publisher(store: EtcdStore, loop: asyncio.AbstractEventLoop) -> Callable[[Keyring], None]:
    """The same for what a rotation changes."""

    def publish(ring: Keyring) -> None:
        _share(store, _CA, _from_ring(ring), loop)

    return publish


def _share(store: EtcdStore, name: str, content: bytes, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(store.share(name, content), loop).result(_PUBLISH_SECONDS)


def _packed(content: bytes) -> bytes:
    """The vault as it is stored: compressed, because etcd takes no value above 1.5 MiB."""
    return zlib.compress(content, 1)


def _unpacked(content: bytes) -> bytes:
    return zlib.decompress(content)
