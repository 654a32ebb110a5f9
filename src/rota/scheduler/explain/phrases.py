"""Amounts, counts and names as text for the sentences of `rota why`."""

from collections.abc import Sequence

from rota.model.amounts import DISK, GPU, MEMORY, WHOLE_GPU, show_amount

_NAMED = 4  # nodes or values named in a sentence


def count_of_nodes(count: int, total: int, singular: str, plural: str) -> str:
    return f"{count} of {total} nodes {singular if count == 1 else plural}"


def join_few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def count_other_jobs(count: int) -> str:
    return "1 other job is" if count == 1 else f"{count} other jobs are"


def count_of_tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def format_amount(resource: str, amount: int) -> str:
    if resource == GPU:
        return f"{amount / WHOLE_GPU:g}"
    return show_amount(resource, amount).removesuffix(f" {resource}")


def format_amount_rounded_down(resource: str, amount: int) -> str:
    """The amount rounded down, so that a request for what is shown fits."""
    if resource not in (MEMORY, DISK) or amount < 1024:
        return format_amount(resource, amount)
    unit = 1024 ** min(4, (amount.bit_length() - 1) // 10)
    tenths = amount * 10 // unit if amount < 100 * unit else amount // unit * 10
    return format_amount(resource, -(-tenths * unit // 10))


def format_amounts_apart(resource: str, available: int, asked: int) -> tuple[str, str]:
    """The available and the requested amount; exact where the rounded texts would be equal."""
    available_text, asked_text = (
        format_amount_rounded_down(resource, available),
        format_amount(resource, asked),
    )
    return (f"{available:,}", f"{asked:,}") if available_text == asked_text else (available_text, asked_text)
