"""Files that belong in a backup: without the CA and the tokens no node trusts the server again. [I/O]"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from rota.identity import files

# Ordering of a crash-safe restore: the certificate last, its key before it, and first the keyring, which
# overrides both once the CA was rotated.
_PATHS = ("ca/ca.json", "ca/ca.key", "ca/ca.pem", "vault/vault.json")
_BYTES_MAX = 64 << 20


def read_backup_files(directory: Path) -> dict[str, bytes]:
    found = {path: directory / path for path in _PATHS}
    # The lock keeps a rotation from changing the files in between.
    with files.locked(directory / "ca", "ca") if (directory / "ca").is_dir() else contextlib.nullcontext():
        return {path: files.read_private(file, _BYTES_MAX) for path, file in found.items() if file.exists()}


def write_backup_files(directory: Path, stored: Mapping[str, bytes]) -> None:
    """Write the known files only, whatever paths a backup has."""
    for path in _PATHS:
        if path in stored:
            file = directory / path
            files.own_directory(file.parent)
            files.write_private(file, stored[path])
