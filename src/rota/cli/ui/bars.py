"""How much of something is asked for and used -> a bar of one line."""

ASKED, USED, FREE = "█", "▌", "·"


def bar(asked: float, used: float | None, total: float, width: int) -> str:
    """`[████▌▌····]`: what is asked for, what is used beyond it, what is left."""
    asked_cells = _cells(asked, total, width)
    used_cells = max(asked_cells, _cells(used or 0.0, total, width))
    return "[" + ASKED * asked_cells + USED * (used_cells - asked_cells) + FREE * (width - used_cells) + "]"


def share(part: float, total: float) -> int:
    """In hundredths; more than all is shown as all."""
    return 0 if total <= 0 else max(0, min(100, round(100 * part / total)))


def _cells(part: float, total: float, width: int) -> int:
    """Something is never shown as nothing."""
    if total <= 0 or part <= 0:
        return 0
    return max(1, min(width, round(width * part / total)))
