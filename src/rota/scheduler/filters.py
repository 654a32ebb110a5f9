"""May a shape run on a node? By its labels; vectorised over all nodes, kept while labels do not change."""

import re

import numpy as np

from rota.model.columns import Array
from rota.model.job import Constraint, Op
from rota.model.room import Room

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def satisfies(constraint: Constraint, labels: dict[str, str]) -> bool:
    value = labels.get(constraint.label)
    match constraint.op:
        case Op.EXISTS:
            return value is not None
        case Op.EQUAL | Op.IN:
            return value in constraint.values
        case Op.UNEQUAL | Op.NOT_IN:
            return value not in constraint.values
        case Op.LESS:
            return value is not None and _compare(value, constraint.values[0]) < 0
        case Op.MORE:
            return value is not None and _compare(value, constraint.values[0]) > 0


def _compare(left: str, right: str) -> int:
    """As versions, part by part: 1.10 is more than 1.9; parts that are no numbers by spelling."""
    one, two = _parts(left), _parts(right)
    return (one > two) - (one < two)


def _parts(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if _WHOLE.fullmatch(part) else (1, 0, part) for part in text.split(".")]


class Masks:
    """Per set of constraints the nodes that satisfy all of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Constraint, ...], tuple[int, int, Array]] = {}

    def of(self, room: Room, where: tuple[Constraint, ...]) -> Array:
        known = self._known.get(where)
        if known is not None and known[:2] == (room.labels_version, room.size):
            return known[2]
        mask = np.array(
            [all(satisfies(one, dict(labels)) for one in where) for labels in room.labels], np.bool_
        )
        self._known[where] = (room.labels_version, room.size, mask)
        return mask
