"""Chunks of one log stream: joined into fewer, larger ones, or cut at an offset."""

from collections.abc import Iterable

from rota.model.messages import LogPiece


def joined(pieces: Iterable[LogPiece], most_bytes: int) -> list[LogPiece]:
    """Join consecutive chunks up to `most_bytes`; gaps and arrival times are preserved."""
    found: list[LogPiece] = []
    together: list[LogPiece] = []
    size = 0
    for piece in pieces:
        apart = piece.missing or piece.rest or size + len(piece.data) > most_bytes
        if together and (apart or piece.offset != together[-1].offset + len(together[-1].data)):
            found.append(_merge(together))
            together, size = [], 0
        together.append(piece)
        size += len(piece.data)
    return [*found, _merge(together)] if together else found


def _merge(pieces: list[LogPiece]) -> LogPiece:
    if len(pieces) == 1:
        return pieces[0]
    marks: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        marks += [(at + length, at_ms) for length, at_ms in piece.marks]
        at += len(piece.data)
        if piece.at_ms and piece.data:
            marks.append((at, piece.at_ms))
    data = b"".join(piece.data for piece in pieces)
    last = pieces[-1]
    if marks and marks[-1] == (at, last.at_ms):
        marks.pop()
    return pieces[0]._replace(data=data, at_ms=last.at_ms, marks=tuple(marks), rest=last.rest)


def behind(offset: int, piece: LogPiece) -> LogPiece:
    """The part of the chunk after the offset."""
    missing = min(piece.missing, max(0, piece.offset - offset))
    cut = max(0, offset - piece.offset)
    if not cut and missing == piece.missing:
        return piece
    marks = tuple((length - cut, at_ms) for length, at_ms in piece.marks if length > cut)
    return piece._replace(offset=piece.offset + cut, data=piece.data[cut:], missing=missing, marks=marks)
