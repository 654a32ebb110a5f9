"""A one-line bar of requested and used amounts."""

REQUESTED, USED, FREE = "█", "▌", "·"


def bar(requested: float, used: float | None, total: float, width: int) -> str:
    """`[████▌▌····]`: requested, used beyond that, free."""
    requested_cells = _cells(requested, total, width)
    used_cells = max(requested_cells, _cells(used or 0.0, total, width))
    return (
        "["
        + REQUESTED * requested_cells
        + USED * (used_cells - requested_cells)
        + FREE * (width - used_cells)
        + "]"
    )


def share(part: float, total: float) -> int:
    """A share in percent, at most 100."""
    return 0 if total <= 0 else max(0, min(100, round(100 * part / total)))


def _cells(part: float, total: float, width: int) -> int:
    """The number of cells of a part; at least one if the part is not zero."""
    if total <= 0 or part <= 0:
        return 0
    return max(1, min(width, round(width * part / total)))
