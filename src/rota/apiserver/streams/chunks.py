"""A piece of a log, as its node sends it -> chunks with their times, as text or as lines of JSON."""

from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rota.apiserver.streams.log_selection import ReadableAttempt
from rota.apiserver.views.jobs import Json
from rota.model.messages import LogPiece

ENCODED_PIECES_MAX = 64  # kept for other followers of the same stream: 350 KiB each at most


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """Bytes of one stream that arrived together, or the reason why bytes are missing."""

    index: int
    attempt: int
    stream: str
    offset: int
    data: bytes
    missing: int
    reason: str | None
    at_ms: int = 0  # wall clock: by when its bytes had arrived; 0: unknown


def split_into_chunks(readable: ReadableAttempt, stream: str, piece: LogPiece) -> Iterator[StreamChunk]:
    """The gap before the piece, a chunk for each time of arrival, and the gap after it, if there are any."""
    index, attempt = readable.index, readable.attempt
    if piece.missing:
        lost_from = piece.offset - piece.missing
        yield StreamChunk(index, attempt, stream, lost_from, b"", piece.missing, piece.reason)
    at = 0
    for until, at_ms in (*piece.marks, (len(piece.data), piece.at_ms)):
        if until > at:
            yield StreamChunk(index, attempt, stream, piece.offset + at, piece.data[at:until], 0, None, at_ms)
            at = until
    if piece.rest is not None:
        yield StreamChunk(index, attempt, stream, piece.offset + len(piece.data), b"", 0, piece.rest)


def to_text(stream: str, piece: LogPiece) -> bytes:
    """The bytes of the piece; a gap becomes a line in brackets."""
    gap = f"\n[{piece.missing} bytes of {stream} missing: {piece.reason}]\n" if piece.missing else ""
    rest = f"\n[the rest of {stream} missing: {piece.rest}]\n" if piece.rest else ""
    return gap.encode() + piece.data + rest.encode() if gap or rest else piece.data


def to_json_line(chunk: StreamChunk) -> bytes:
    line: Json = {"index": chunk.index, "attempt": chunk.attempt, "stream": chunk.stream}
    if chunk.reason is None:
        line |= {"offset": chunk.offset, "data": b64encode(chunk.data).decode()}
        if chunk.at_ms:
            line["at_ms"] = chunk.at_ms
    else:
        line |= {"offset": chunk.offset, "missing": chunk.missing, "reason": chunk.reason}
    return msgspec.json.encode(line) + b"\n"


class EncodedChunkCache:
    """The latest piece of each stream as JSON lines, encoded once for all followers of the stream."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, int, int, str], tuple[LogPiece, bytes]] = OrderedDict()

    def lines(self, job: str, readable: ReadableAttempt, stream: str, piece: LogPiece) -> bytes:
        key = (job, readable.index, readable.attempt, stream)
        known = self._latest.get(key)
        # Compared by identity: followers of a shared stream are given the same object.
        if known is not None and known[0] is piece:
            return known[1]
        lines = b"".join(to_json_line(chunk) for chunk in split_into_chunks(readable, stream, piece))
        self._latest[key] = (piece, lines)
        self._latest.move_to_end(key)
        if len(self._latest) > ENCODED_PIECES_MAX:
            self._latest.popitem(last=False)
        return lines
