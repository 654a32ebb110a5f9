"""Entries of a list as they change: each event leads to what it was about, as that stands now. [I/O]"""

from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from rota.apiserver import responses
from rota.apiserver.api import Api
from rota.apiserver.streams.event_cursor import EventCursor, SequencedEvent
from rota.apiserver.views import pages
from rota.engine.state.mirror import Mirror
from rota.model.plan import EventRecord

K = TypeVar("K")
GONE_EVENT = "gone"
BATCH_SIZE = 500  # entries looked at before others have their turn


@dataclass(frozen=True, slots=True)
class WatchedList(Generic[K]):
    """`kind` is the name of its events; `about` says of which entries an event tells; `look` shows one.

    What is not, or no longer, in the list is shown as None, and told as gone by its `name`.
    """

    kind: str
    keys_of: Callable[[EventRecord], Iterable[K]]
    read: Callable[[Mirror, K], pages.Json | None]
    identify: Callable[[K], pages.Json]


def requested_cursor(api: Api, request: Request) -> EventCursor | None:
    """Where the reader stands: by the header of its reconnect, else as it asks."""
    streams = responses.accepts_event_stream(request)
    said = (request.headers.get("last-event-id") if streams else None) or request.query_params.get("since")
    if not said:
        return None
    position = EventCursor.parse("since", said)
    api.event_hub.check_cursor(position)
    return position


def watch_list(
    api: Api, request: Request, watched: WatchedList[K], only: frozenset[str] | None = None
) -> Response:
    """From where the reader stands, or from now on; an id is that of the event which led to the entry."""
    position = requested_cursor(api, request) or api.event_hub.latest_cursor()

    async def run(write: responses.Write) -> bytes:
        async with aclosing(api.event_hub.events_after(position)) as found:
            async for happened in found:
                touched = _touched(watched, happened)
                for first in range(0, len(touched), BATCH_SIZE):
                    some = touched[first : first + BATCH_SIZE]
                    await write(
                        await api.engine.read(
                            partial(_encode_changes, watched=watched, touched=some, only=only)
                        )
                    )
                if not touched:
                    await write(responses.KEEP_ALIVE)
        return b""

    return responses.StreamingResponse(run, responses.EVENT_STREAM, prefix=b"")


def _touched(watched: WatchedList[K], happened: list[SequencedEvent]) -> list[tuple[K, EventCursor | None]]:
    """Each entry once, at the last event about it; only the last entry of an event has its position.

    So whoever resumes behind any position has missed nothing.
    """
    last = {key: one.at for one in happened for key in watched.keys_of(one.event)}
    ordered = sorted(last.items(), key=lambda item: item[1])
    following = [at for _, at in ordered[1:]]
    return [(key, None if at == after else at) for (key, at), after in zip_longest(ordered, following)]


def _encode_changes(
    mirror: Mirror,
    *,
    watched: WatchedList[K],
    touched: list[tuple[K, EventCursor | None]],
    only: frozenset[str] | None,
) -> bytes:
    lines = []
    for key, at in touched:
        shown = watched.read(mirror, key)
        kind, value = (
            (GONE_EVENT, watched.identify(key))
            if shown is None
            else (watched.kind, pages.pick_fields(shown, only))
        )
        lines.append(responses.sse_event(kind, value, None if at is None else str(at)))
    return b"".join(lines)
