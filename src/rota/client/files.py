"""Encoding of the files that are sent with a job."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any


def encode_files(files: Mapping[str, Any]) -> dict[str, Any]:
    """Each file as text, or as base64 if its bytes are not UTF-8."""
    return {
        path: _content(content) if isinstance(content, bytes) else content for path, content in files.items()
    }


def _content(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}
