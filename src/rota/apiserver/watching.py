"""Entries of a list as they change: each event leads to what it was about, as that stands now. [I/O]"""

from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import answers, pages
from rota.apiserver.api import Api
from rota.apiserver.feed import Happened, Position
from rota.engine.mirror import Mirror
from rota.model.plan import Event

K = TypeVar("K")
GONE = "gone"
AT_ONCE = 500  # entries looked at before others have their turn


@dataclass(frozen=True, slots=True)
class Watched(Generic[K]):
    """`kind` is the name of its events; `about` says of which entries an event tells; `look` shows one.

    What is not, or no longer, in the list is shown as None, and told as gone by its `name`.
    """

    kind: str
    about: Callable[[Event], Iterable[K]]
    look: Callable[[Mirror, K], pages.Json | None]
    name: Callable[[K], pages.Json]


def position_of(api: Api, request: Request) -> Position | None:
    """Where the reader stands: by the header of its reconnect, else as it asks."""
    streams = answers.wants_events(request)
    said = (request.headers.get("last-event-id") if streams else None) or request.query_params.get("since")
    if not said:
        return None
    position = Position.parse("since", said)
    api.changes.check(position)
    return position


def watching(api: Api, request: Request, watched: Watched[K], only: frozenset[str] | None = None) -> Response:
    """From where the reader stands, or from now on; an id is that of the event which led to the entry."""
    position = position_of(api, request) or api.changes.now()

    async def run(write: answers.Write) -> bytes:
        async with aclosing(api.changes.events_after(position)) as found:
            async for happened in found:
                touched = _touched(watched, happened)
                for first in range(0, len(touched), AT_ONCE):
                    some = touched[first : first + AT_ONCE]
                    await write(
                        await api.engine.read(partial(_told, watched=watched, touched=some, only=only))
                    )
                if not touched:
                    await write(answers.KEEP_ALIVE)
        return b""

    return answers.Stream(run, answers.EVENTS, beginning=b"")


def _touched(watched: Watched[K], happened: list[Happened]) -> list[tuple[K, Position | None]]:
    """Each entry once, at the last event about it; only the last entry of an event has its position.

    So whoever resumes behind any position has missed nothing.
    """
    last = {key: one.at for one in happened for key in watched.about(one.event)}
    ordered = sorted(last.items(), key=lambda item: item[1])
    following = [at for _, at in ordered[1:]]
    return [(key, None if at == after else at) for (key, at), after in zip_longest(ordered, following)]


def _told(
    mirror: Mirror,
    *,
    watched: Watched[K],
    touched: list[tuple[K, Position | None]],
    only: frozenset[str] | None,
) -> bytes:
    lines = []
    for key, at in touched:
        shown = watched.look(mirror, key)
        kind, value = (GONE, watched.name(key)) if shown is None else (watched.kind, pages.pick(shown, only))
        lines.append(answers.server_sent(kind, value, None if at is None else str(at)))
    return b"".join(lines)
