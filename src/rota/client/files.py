"""Files to send with a job -> text, or base64 where they are none."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any


def sendable(files: Mapping[str, Any]) -> dict[str, Any]:
    return {path: _content(said) if isinstance(said, bytes) else said for path, said in files.items()}


def _content(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}
