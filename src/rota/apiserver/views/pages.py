"""Lists: query parameters + entries -> one page, with the limit, order, fields and filters requested."""

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
FIELDS_MAX = 64  # more than any resource has
LABELS_MAX = 16  # in a filter: each is compared with every entry


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page of a list. `after` is the last name of the previous page; it may have been deleted since."""

    limit: int | None  # None: no limit
    after: str | None
    descending: bool
    only: frozenset[str] | None  # fields to show; None: all


def parse_page_request(
    query: Query, known: Iterable[str], order: str, *, most: int, default: int | None = None
) -> PageRequest:
    """`order` is the field that the list is sorted by. Its values never change, or pages would overlap."""
    sort = query.get("sort", order)
    if sort not in (order, reverse_order(order)):
        raise BadField(
            "sort", f"'{fields.printable(sort)}' is not an order", f"write {order} or {reverse_order(order)}"
        )
    given = query.get("limit")
    limit = default if given is None else fields.number("limit", parse_count, given, 1, most)
    return PageRequest(limit, query.get("after"), sort.startswith("-"), chosen_fields(query, known))


def reverse_order(order: str) -> str:
    return order.removeprefix("-") if order.startswith("-") else f"-{order}"


def chosen_fields(query: Query, known: Iterable[str]) -> frozenset[str] | None:
    """The names in `fields=id,state`; None: all fields."""
    given = query.get("fields")
    if given is None:
        return None
    names, valid = [name.strip() for name in given.split(",", FIELDS_MAX)], list(known)
    for name in names:
        if name not in valid:
            near = get_close_matches(name, valid, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(valid)}"
            raise BadField("fields", f"'{fields.printable(name)}' is not a field", hint)
    return frozenset(names)


def pick_fields(shown: Json, only: frozenset[str] | None) -> Json:
    return shown if only is None else {name: value for name, value in shown.items() if name in only}


def paginate(
    entries: Iterable[T], name: Callable[[T], str], request: PageRequest, rank: Callable[[str], Any] = str
) -> tuple[Sequence[T], str | None]:
    """One page in the order of names, and the name that the next page starts after.

    All entries are sorted for each page: use it for lists that are not large.
    """
    found = sorted(entries, key=lambda entry: rank(name(entry)), reverse=request.descending)
    if request.after is not None:
        start = rank(request.after)
        found = [
            entry
            for entry in found
            if (rank(name(entry)) < start if request.descending else rank(name(entry)) > start)
        ]
    if request.limit is None or len(found) <= request.limit:
        return found, None
    return found[: request.limit], name(found[request.limit - 1])


def parse_choices(query: Query, field: str, known: Iterable[str]) -> frozenset[str] | None:
    """The values in `state=lost,suspect`, any of which matches; None: no filter."""
    given, valid = query.get(field), list(dict.fromkeys(known))
    if given is None:
        return None
    names = [name.strip() for name in given.split(",", FIELDS_MAX)]
    for name in names:
        if name not in valid:
            raise BadField(
                field, f"'{fields.printable(name)}' is not one of them", f"write one of: {', '.join(valid)}"
            )
    return frozenset(names)


def label_filter(terms: Sequence[str]) -> Callable[[Mapping[str, str]], bool]:
    """A filter from `label=team=web` or `label=team`; every label given has to match."""
    if len(terms) > LABELS_MAX:
        raise BadField("label", "is given too often", f"write it at most {LABELS_MAX} times")
    pairs = [term.partition("=") for term in terms]
    for key, _, _ in pairs:
        fields.label_name("label", key, "write KEY=VALUE or KEY, as team=web")
    return lambda labels: all(
        key in labels and (not sign or labels[key] == value) for key, sign, value in pairs
    )
