"""A token in a file that only its owner can read."""

from pathlib import Path

from rota.identity import files
from rota.identity.errors import Unsafe

MAX_TOKEN_FILE_BYTES = 4096


def write_token(path: Path, secret: str) -> None:
    files.make_directory(path.parent)
    files.write_private(path, f"{secret}\n".encode())


def read_token(path: Path) -> str:
    try:
        parts = files.read_private(path, MAX_TOKEN_FILE_BYTES).decode("ascii").split()
    except UnicodeDecodeError as error:
        raise Unsafe(f"{path} does not hold a token") from error
    if len(parts) != 1:
        raise Unsafe(f"{path} must hold one token and nothing else, it holds {len(parts)} words")
    return parts[0]
