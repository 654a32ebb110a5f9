"""Files that only their owner can read, as the client requires for tokens."""

from pathlib import Path


def write_secret(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)
