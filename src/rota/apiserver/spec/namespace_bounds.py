"""The bounds of a namespace <-> what goes over the API."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rota.apiserver.spec import fields, placement
from rota.model.amounts import parse_count, parse_size
from rota.model.limits import AMOUNT_MAX, COUNT_MAX, JOBS_WAITING_MAX, PRIORITY_MAX
from rota.model.namespace import NamespaceBounds, NamespaceUsage

_CLUSTERS_HINT = 'write a list of names, as ["default"]'


def parse_bounds(value: object) -> NamespaceBounds:
    """Only what is given is set."""
    said = fields.known_fields(value, tuple(_PARSERS))
    given = {name: one for name, one in said.items() if one is not None}
    return NamespaceBounds(
        **{_PARSERS[name][0]: _PARSERS[name][1](f"bounds.{name}", one) for name, one in given.items()}
    )


def bounds_json(bounds: NamespaceBounds) -> dict[str, Any]:
    values = {name: getattr(bounds, one.attribute) for name, one in _PARSERS.items()}
    return {name: value for name, value in values.items() if value is not None}


def usage_json(kept: NamespaceUsage) -> dict[str, int]:
    return {"jobs": kept.jobs, "tasks": kept.tasks, "bytes": kept.stored_bytes}


def _count_parser(most: int) -> Callable[[str, object], int]:
    return lambda field, value: fields.number(field, parse_count, value, 0, most)


def _parse_bytes(field: str, value: object) -> int:
    return min(fields.number(field, parse_size, value), AMOUNT_MAX)


def _parse_names(field: str, value: object) -> tuple[str, ...]:
    return tuple(fields.name(field, one) for one in fields.texts(field, value, _CLUSTERS_HINT))


class _BoundParser(NamedTuple):
    """Which attribute of Bounds a field is, and how it is read."""

    attribute: str
    parse: Callable[[str, object], Any]


_PARSERS: Mapping[str, _BoundParser] = {
    "priority": _BoundParser("priority", _count_parser(PRIORITY_MAX)),
    "tolerate": _BoundParser("tolerate", placement.parse_tolerations),
    "clusters": _BoundParser("clusters", _parse_names),
    "jobs": _BoundParser("jobs", _count_parser(JOBS_WAITING_MAX)),
    "tasks": _BoundParser("tasks", _count_parser(COUNT_MAX * JOBS_WAITING_MAX)),
    "bytes": _BoundParser("stored_bytes", _parse_bytes),
}
