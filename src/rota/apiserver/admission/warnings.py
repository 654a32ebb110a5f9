"""A JobSpec + the nodes there are -> warnings: what nobody could give it now, though that may change."""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

from rota.apiserver.spec.placement import LABEL_SHORTHANDS
from rota.model.amounts import CPU, DISK, GPU, MEMORY, WHOLE_GPU, show_amount
from rota.model.columns import Array
from rota.model.container import RUNTIME, SANDBOX
from rota.model.job import JobSpec
from rota.model.shape import Constraint, Op, is_repelled
from rota.model.view import View

WARNINGS_MAX = 8  # warnings of one job: each is one pass over the nodes, and a line to read
_VALUES_SHOWN = 3  # values named in one warning
_NAMES_COMPARED = 1_000  # names among which the nearest is looked for
_RESOURCE_FIELDS = (CPU, MEMORY, DISK, GPU)


class SubmitWarning(NamedTuple):
    """One warning, and the field it is about."""

    field: str
    text: str


def submit_warnings(view: View, spec: JobSpec, asked: Collection[str]) -> tuple[SubmitWarning, ...]:
    """`asked` are the fields the user wrote. Whatever some node has is found by looking at few."""
    if all(entry.status is None for entry in view.nodes.values()):
        return ()  # whoever submits before the first node joins knows that it waits
    places = NodeInventory(view)
    each = (
        _constraint_warnings(places, spec, asked),
        _preference_warnings(places, spec),
        _resource_warnings(places, spec),
    )
    found = tuple(islice(chain(*each), WARNINGS_MAX))
    return found or tuple(_combined_warnings(places, spec))


class NodeInventory:
    """What is said of the nodes there are. Looked at by value: most nodes say the same."""

    def __init__(self, view: View) -> None:
        room = view.node_table
        all_are_there = len(view.nodes) == room.size
        slots = range(room.size) if all_are_there else [room.slot[node] for node in view.nodes]
        self.labels = room.labels if all_are_there else [room.labels[slot] for slot in slots]
        self.taints = room.taints if all_are_there else [room.taints[slot] for slot in slots]
        self._slots = slice(room.size) if all_are_there else slots
        self._room = room
        self.matching: list[int] = []  # nodes that satisfied one condition or another

    def capacity(self, resource: str) -> Array | None:
        row = self._room.rows.get(resource)
        return None if row is None else self._room.capacity[row, self._slots]

    def any_satisfies(self, condition: Constraint) -> bool:
        seen: set[str | None] = set()
        for at, labels in enumerate(self.labels):
            value = labels.get(condition.label)
            if value not in seen:
                seen.add(value)
                if condition.holds(labels):
                    self.matching.append(at)
                    return True
        return False

    def values(self, label: str) -> list[str]:
        return sorted({labels[label] for labels in self.labels if label in labels})

    @cached_property
    def label_names(self) -> list[str]:
        """Of all labels."""
        return sorted({name for labels in self.labels for name in labels})

    def copies_per_node(self, spec: JobSpec) -> Array | None:
        """How many of its tasks each holds when it has nothing else; None: none does."""
        held: Array | None = None
        for resource, amount in spec.needs.items():
            there = self.capacity(resource)
            if there is None:
                return None
            if resource == GPU and amount < WHOLE_GPU:
                copies = there // WHOLE_GPU * (WHOLE_GPU // amount)
            else:
                copies = there // amount
            held = copies if held is None else held.clip(max=copies)
        return held


def _constraint_warnings(
    places: NodeInventory, spec: JobSpec, asked: Collection[str]
) -> Iterator[SubmitWarning]:
    fields = {label: field for field, label in LABEL_SHORTHANDS.items() if field in asked}
    for condition in dict.fromkeys(spec.conditions):
        if condition == RUNTIME and not places.any_satisfies(condition):
            yield SubmitWarning("image", "no node has a container runtime now")
        elif condition == SANDBOX and not places.any_satisfies(condition):
            yield SubmitWarning("sandbox", "no node has a bubblewrap that works now")
        elif not places.any_satisfies(condition):
            field = fields.get(condition.label, "where") if condition.op is Op.EQUAL else "where"
            yield SubmitWarning(field, _unmet(places, condition))


def _preference_warnings(places: NodeInventory, spec: JobSpec) -> Iterator[SubmitWarning]:
    for preference in dict.fromkeys(spec.prefer):
        if preference.weight > 0 and not places.any_satisfies(preference.condition):
            yield SubmitWarning("prefer", f"{_unmet(places, preference.condition)}, so it changes nothing")
    overs = [("near", one.over) for one in spec.near]
    overs += [("apart", one.over) for one in spec.apart]
    overs += [("spread", one.over) for one in spec.spread]
    for field, label in dict.fromkeys(overs):
        if not any(label in labels for labels in places.labels):
            yield SubmitWarning(field, _no_label(places, label))


def _unmet(places: NodeInventory, condition: Constraint) -> str:
    known = places.values(condition.label)
    if condition.label == "node" and condition.op is Op.EQUAL:
        return f"there is no node {condition.values[0]} now{_nearest(condition.values[0], known)}"
    if not known:
        return _no_label(places, condition.label)
    few = ", ".join(known[:_VALUES_SHOWN]) + (", ..." if len(known) > _VALUES_SHOWN else "")
    return f"no node satisfies '{condition}' now: {condition.label} is {few}"


def _no_label(places: NodeInventory, label: str) -> str:
    return f"no node has the label {label} now{_nearest(label, places.label_names)}"


def _nearest(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known[:_NAMES_COMPARED], 1)
    return f"; did you mean {near[0]}?" if near else ""


def _resource_warnings(places: NodeInventory, spec: JobSpec) -> Iterator[SubmitWarning]:
    for resource, amount in spec.needs.items():
        there = places.capacity(resource)
        most = 0 if there is None else int(there.max())
        field = resource if resource in _RESOURCE_FIELDS else "resources"
        if not most:
            yield SubmitWarning(field, f"no node has any {resource} now")
        elif most < amount:
            asked, largest = show_amount(resource, amount), show_amount(resource, most)
            yield SubmitWarning(field, f"no node has {asked} in all; the largest has {largest}")


def _combined_warnings(places: NodeInventory, spec: JobSpec) -> Iterator[SubmitWarning]:
    """Each wish alone can be met by somebody."""
    holding = places.copies_per_node(spec)
    wanted = spec.count if spec.gang else 1
    held = 0
    admits = _NodeFilter(spec)
    if holding is not None:
        likely = [] if spec.gang else [at for at in places.matching if holding[at]]
        for at in chain(likely, holding.nonzero()[0].tolist()):
            if admits.is_eligible(places.labels[at], places.taints[at]):
                held += int(holding[at])
                if held >= wanted:
                    return
    hindered = [admits.untolerated(*said) for said in zip(places.labels, places.taints, strict=True)]
    taints = [some for some in hindered if some is not None]
    if not taints:
        yield SubmitWarning(
            "where", "no node satisfies all of its conditions now, though each is met somewhere"
        )
    elif all(taints):
        named = ", ".join(sorted({taint for some in taints for taint in some})[:_VALUES_SHOWN])
        yield SubmitWarning(
            "tolerate", f"each node it could run on has a taint it does not tolerate: {named}"
        )
    else:
        yield _capacity_warning(spec, held)


def _capacity_warning(spec: JobSpec, held: int) -> SubmitWarning:
    if held:
        text = f"its {spec.count} tasks start together; all nodes it may use hold {held} of them when empty"
        return SubmitWarning("gang", text)
    if spec.where or spec.tolerate:
        return SubmitWarning("where", "no node that it may use is large enough now")
    needs = " and ".join(show_amount(resource, amount) for resource, amount in spec.needs.items())
    return SubmitWarning("cpu", f"no node has {needs} at once")


class _NodeFilter:
    """Does what is said of a node allow it? Nodes of which the same is said are looked at once."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._asked = tuple({one.label for one in spec.conditions})
        self._known: dict[tuple[object, ...], tuple[str, ...] | None] = {}

    def is_eligible(self, labels: Mapping[str, str], taints: tuple[str, ...]) -> bool:
        return self.untolerated(labels, taints) == ()

    def untolerated(self, labels: Mapping[str, str], taints: tuple[str, ...]) -> tuple[str, ...] | None:
        """The taints that keep it away; None where its conditions do."""
        said = (taints, *[labels.get(label) for label in self._asked])
        if said not in self._known:
            admitted = all(one.holds(labels) for one in self._spec.conditions)
            self._known[said] = self._untolerated(taints) if admitted else None
        return self._known[said]

    def _untolerated(self, taints: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(taint for taint in taints if is_repelled(self._spec.tolerated, taint))
