"""What every server of a cluster must be known by: one CA and one vault, in etcd. [I/O]"""

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rota.identity import files, vault
from rota.identity.authority import Authority
from rota.identity.errors import Unsafe
from rota.identity.vault import Vault
from rota.store.etcd.store import EtcdStore

_PUBLISH_SECONDS = 5.0
_CA, _VAULT = "ca", "vault"
_PACKED_BYTES = (
    1 << 20
)  # above it the vault is packed: etcd takes 1.5 MiB, and an older Rota reads plain ones
_CA_FILES = ("ca.key", "ca.pem")  # the certificate last: while there is none, nobody has trusted this CA yet


async def adopt_authority(store: EtcdStore, directory: Path) -> None:
    """The first server's CA is the cluster's; a directory that holds another belongs to another cluster."""
    place = directory / "ca"
    had_one = (place / "ca.pem").exists()
    shared = await store.board.read(_CA)
    if shared is None or had_one:
        Authority.open(place, datetime.now(UTC))
        own = json.dumps({name: (place / name).read_text() for name in _CA_FILES}).encode()
        shared = await store.board.settle(_CA, own)
        if shared != own and had_one:
            raise Unsafe(f"{directory} holds the CA of another cluster than etcd: use an empty directory")
    files.own_directory(place)
    said: dict[str, str] = json.loads(shared)
    for name in _CA_FILES:
        files.write_private(place / name, said[name].encode())


async def adopt_vault(store: EtcdStore, directory: Path) -> None:
    """What the leader before gave out is known here from now on."""
    place = directory / "vault"
    Vault.open(place)
    shared = await store.board.read(_VAULT)
    if shared is not None:
        files.write_private(place / vault.FILE, _unpacked(shared))


def take_vault(name: str, content: bytes | None, directory: Path) -> None:
    """What the leader gives out while we stand by."""
    if name == _VAULT and content is not None:
        files.write_private(directory / "vault" / vault.FILE, _unpacked(content))


async def share(store: EtcdStore, kept: Mapping[str, bytes]) -> None:
    """What a data directory or a backup held; by its paths there."""
    if f"ca/{_CA_FILES[0]}" in kept:
        own = {name: kept[f"ca/{name}"].decode() for name in _CA_FILES}
        await store.board.settle(_CA, json.dumps(own).encode())
    if f"vault/{vault.FILE}" in kept:
        await store.board.settle(_VAULT, _packed(kept[f"vault/{vault.FILE}"]))


async def read_shared(store: EtcdStore) -> dict[str, bytes]:
    """The same, back."""
    found: dict[str, bytes] = {}
    authority, tokens = await store.board.read(_CA), await store.board.read(_VAULT)
    if authority is not None:
        said: dict[str, str] = json.loads(authority)
        found |= {f"ca/{name}": said[name].encode() for name in _CA_FILES}
    if tokens is not None:
        found[f"vault/{vault.FILE}"] = _unpacked(tokens)
    return found


def publisher(store: EtcdStore, loop: asyncio.AbstractEventLoop) -> Callable[[bytes], None]:
    """For threads other than the loop's: returns when etcd has it."""

    def publish(content: bytes) -> None:
        writing = store.share(_VAULT, _packed(content))
        asyncio.run_coroutine_threadsafe(writing, loop).result(_PUBLISH_SECONDS)

    return publish


def _packed(content: bytes) -> bytes:
    return zlib.compress(content, 1) if len(content) > _PACKED_BYTES else content


def _unpacked(content: bytes) -> bytes:
    return content if content.startswith(b"{") else zlib.decompress(content)
