"""Amounts, counts and names as they stand in the sentences of `rota why`."""

from collections.abc import Sequence

from rota.model.amounts import DISK, GPU, MEMORY, WHOLE_GPU, show_amount

_NAMED = 4  # nodes or values named in a sentence


def of_nodes(count: int, total: int, one: str, many: str) -> str:
    return f"{count} of {total} nodes {one if count == 1 else many}"


def few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def other_jobs(count: int) -> str:
    return "1 other job is" if count == 1 else f"{count} other jobs are"


def tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def plain(resource: str, amount: int) -> str:
    if resource == GPU:
        return f"{amount / WHOLE_GPU:g}"
    return show_amount(resource, amount).removesuffix(f" {resource}")


def at_most(resource: str, amount: int) -> str:
    """Rounded down, so that who asks for what is shown gets it."""
    if resource not in (MEMORY, DISK) or amount < 1024:
        return plain(resource, amount)
    unit = 1024 ** min(4, (amount.bit_length() - 1) // 10)
    tenths = amount * 10 // unit if amount < 100 * unit else amount // unit * 10
    return plain(resource, -(-tenths * unit // 10))


def pair(resource: str, there: int, asked: int) -> tuple[str, str]:
    """What is there and what is asked; exactly, where they differ by less than is shown."""
    shown, wanted = at_most(resource, there), plain(resource, asked)
    return (f"{there:,}", f"{asked:,}") if shown == wanted else (shown, wanted)
