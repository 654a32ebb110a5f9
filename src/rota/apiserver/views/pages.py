"""What a request says of a list + what there is -> one page of it: how many, in which order, which fields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from rota.apiserver.spec import fields
from rota.model.amounts import parse_count
from rota.model.errors import BadField

Json = dict[str, Any]
Query = Mapping[str, str]
T = TypeVar("T")
FIELDS_MAX = 64  # more than anything has
LABELS_MAX = 16  # each is compared with every entry


@dataclass(frozen=True, slots=True)
class PageRequest:
    """`after` is the name of the last one on the page before, which need no longer be there."""

    limit: int | None  # None: all of them
    after: str | None
    descending: bool
    only: frozenset[str] | None  # None: every field


def parse_page_request(
    query: Query, known: Iterable[str], order: str, *, most: int, default: int | None = None
) -> PageRequest:
    """`order` is what the list is sorted by: something that never changes, lest pages overlap."""
    sort = query.get("sort", order)
    if sort not in (order, reverse_order(order)):
        raise BadField(
            "sort", f"'{fields.printable(sort)}' is no order", f"write {order} or {reverse_order(order)}"
        )
    given = query.get("limit")
    limit = default if given is None else fields.number("limit", parse_count, given, 1, most)
    return PageRequest(limit, query.get("after"), sort.startswith("-"), chosen_fields(query, known))


def reverse_order(order: str) -> str:
    return order.removeprefix("-") if order.startswith("-") else f"-{order}"


def chosen_fields(query: Query, known: Iterable[str]) -> frozenset[str] | None:
    """The names in `fields=id,state`."""
    given = query.get("fields")
    if given is None:
        return None
    names, there = [name.strip() for name in given.split(",", FIELDS_MAX)], list(known)
    for name in names:
        if name not in there:
            near = get_close_matches(name, there, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(there)}"
            raise BadField("fields", f"'{fields.printable(name)}' is not a field of these", hint)
    return frozenset(names)


def pick_fields(shown: Json, only: frozenset[str] | None) -> Json:
    return shown if only is None else {name: value for name, value in shown.items() if name in only}


def paginate(
    entries: Iterable[T], name: Callable[[T], str], wanted: PageRequest, rank: Callable[[str], Any] = str
) -> tuple[Sequence[T], str | None]:
    """Some of them in the order of their names, and where to go on; for lists that fit into memory twice."""
    found = sorted(entries, key=lambda entry: rank(name(entry)), reverse=wanted.descending)
    if wanted.after is not None:
        here = rank(wanted.after)
        found = [
            entry
            for entry in found
            if (rank(name(entry)) < here if wanted.descending else rank(name(entry)) > here)
        ]
    if wanted.limit is None or len(found) <= wanted.limit:
        return found, None
    return found[: wanted.limit], name(found[wanted.limit - 1])


def parse_choices(query: Query, field: str, known: Iterable[str]) -> frozenset[str] | None:
    """`state=lost,suspect`: any of these."""
    given, there = query.get(field), list(dict.fromkeys(known))
    if given is None:
        return None
    names = [name.strip() for name in given.split(",", FIELDS_MAX)]
    for name in names:
        if name not in there:
            raise BadField(
                field, f"'{fields.printable(name)}' is not one of them", f"write one of: {', '.join(there)}"
            )
    return frozenset(names)


def label_filter(wanted: Sequence[str]) -> Callable[[Mapping[str, str]], bool]:
    """`label=team=web` or `label=team`, all of them."""
    if len(wanted) > LABELS_MAX:
        raise BadField("label", "is said too often", f"write it at most {LABELS_MAX} times")
    pairs = [one.partition("=") for one in wanted]
    for key, _, _ in pairs:
        fields.label_name("label", key, "write KEY=VALUE or KEY, as team=web")
    return lambda labels: all(
        key in labels and (not sign or labels[key] == value) for key, sign, value in pairs
    )
