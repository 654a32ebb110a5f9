"""Files of a data directory that belong into a backup: without them no node knows the server again. [I/O]"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from rota.identity import files

# A certificate is written last: its key comes first, and what counts once the CA was rotated before both.
_PATHS = ("ca/ca.json", "ca/ca.key", "ca/ca.pem", "vault/vault.json")
_BYTES_MAX = 64 << 20


def read_backup_files(directory: Path) -> dict[str, bytes]:
    found = {path: directory / path for path in _PATHS}
    # With the lock a rotation falls before or after all of them.
    with files.locked(directory / "ca", "ca") if (directory / "ca").is_dir() else contextlib.nullcontext():
        return {path: files.read_private(file, _BYTES_MAX) for path, file in found.items() if file.exists()}


def write_backup_files(directory: Path, kept: Mapping[str, bytes]) -> None:
    """Those we know, and nothing else, whatever a backup says."""
    for path in _PATHS:
        if path in kept:
            file = directory / path
            files.own_directory(file.parent)
            files.write_private(file, kept[path])
