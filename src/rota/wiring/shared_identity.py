"""What every server of a cluster must be known by: one CA and one vault, in etcd. [I/O]"""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rota.identity import files, vault
from rota.identity.authority import Authority
from rota.identity.errors import Unsafe
from rota.identity.vault import Vault
from rota.store.etcd.store import EtcdStore

_PUBLISH_SECONDS = 5.0
_CA, _VAULT = "ca", "vault"
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
        files.write_private(place / vault.FILE, shared)


def publisher(store: EtcdStore, loop: asyncio.AbstractEventLoop) -> Callable[[bytes], None]:
    """For threads other than the loop's: returns when etcd has it."""

    def publish(content: bytes) -> None:
        writing = store.board.write(_VAULT, content, store.seat_taken_at)
        asyncio.run_coroutine_threadsafe(writing, loop).result(_PUBLISH_SECONDS)

    return publish
