"""Watches on lists: for each event, the entries that it is about are sent as they are now. [I/O]

Entries are read when they are sent, not when the event was committed, so that a slow reader gets fewer and
newer states, and nothing is queued for it.
"""

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
BATCH_SIZE = 500  # entries rendered between two awaits, so that other requests are not delayed


@dataclass(frozen=True, slots=True)
class WatchedList(Generic[K]):
    """How a list is watched. K is the key of an entry.

    `kind` is the name of its server-sent events, `keys_of` the entries that an event is about. `read` renders
    an entry, or returns None if it is not in the list any more: then GONE_EVENT is sent with `identify`.
    """

    kind: str
    keys_of: Callable[[EventRecord], Iterable[K]]
    read: Callable[[Mirror, K], pages.Json | None]
    identify: Callable[[K], pages.Json]


def requested_cursor(api: Api, request: Request) -> EventCursor | None:
    """The cursor of the reader: Last-Event-ID after a reconnect, else `since`; None if it sends neither."""
    streams = responses.accepts_event_stream(request)
    text = (request.headers.get("last-event-id") if streams else None) or request.query_params.get("since")
    if not text:
        return None
    position = EventCursor.parse("since", text)
    api.event_hub.check_cursor(position)
    return position


def watch_list(
    api: Api, request: Request, watched: WatchedList[K], only: frozenset[str] | None = None
) -> Response:
    """A stream of changed entries, from the reader's cursor or from now on; the id is the event's cursor."""
    # Fixed before the response starts: what is committed from now on is sent, however late the client reads.
    position = requested_cursor(api, request) or api.event_hub.latest_cursor()

    async def run(write: responses.Write) -> bytes:
        async with aclosing(api.event_hub.events_after(position)) as pages_of_events:
            async for events in pages_of_events:
                touched = _touched(watched, events)
                for first in range(0, len(touched), BATCH_SIZE):
                    batch = touched[first : first + BATCH_SIZE]
                    encode = partial(_encode_changes, watched=watched, touched=batch, only=only)
                    await write(await api.engine.read(encode))
                if not touched:
                    # Also after events about other entries: a proxy in between closes
                    # connections that stay silent.
                    await write(responses.KEEP_ALIVE)
        return b""

    return responses.StreamingResponse(run, responses.EVENT_STREAM, prefix=b"")


def _touched(watched: WatchedList[K], events: list[SequencedEvent]) -> list[tuple[K, EventCursor | None]]:
    """Each touched entry once, in the order of the last event about it, with the cursor of that event.

    Invariant: of several entries of one event only the last carries the cursor, so that a reader that resumes
    after any cursor has missed nothing.
    """
    last = {key: happened.at for happened in events for key in watched.keys_of(happened.event)}
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
