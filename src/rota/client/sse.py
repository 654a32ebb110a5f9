"""Parser for server-sent events."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rota.client.errors import Broken

ACCEPT = {"Accept": "text/event-stream"}


@dataclass(frozen=True)
class Message:
    """One server-sent event; `id` is the position to resume after it, if any."""

    kind: str
    text: str
    id: str | None = None

    def value(self) -> Any:
        try:
            return json.loads(self.text)
        except ValueError:
            raise Broken("internal", "the server sent an event that is not JSON") from None


def messages(lines: Iterator[bytes]) -> Iterator[Message]:
    """Messages made of `id:`, `event:` and `data:` lines up to a blank line; comments are keepalives."""
    fields: dict[str, str] = {}
    data = list[str]()
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").rstrip("\r").partition(":")
        value = value.removeprefix(" ")
        if name in ("event", "id"):
            fields[name] = value
        elif name == "data":
            data.append(value)
        elif not name and not value and data:
            yield Message(fields.get("event", "message"), "\n".join(data), fields.get("id"))
            fields, data = {}, []
