"""A JobSpec + the nodes that exist -> warnings: requirements that no node satisfies now.

They are warnings and not errors, since a node that satisfies them may join later. Only labels, taints and
capacity of nodes count, not what is free, nor whether a node is connected or open.
"""

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

WARNINGS_MAX = 8  # of one job: each costs a pass over the nodes, and the user a line to read
_VALUES_SHOWN = 3  # in one warning
_NAMES_COMPARED = 1_000  # in the search for the closest match
_RESOURCE_FIELDS = (CPU, MEMORY, DISK, GPU)


class SubmitWarning(NamedTuple):
    """One warning, and the field it is about."""

    field: str
    text: str


def submit_warnings(view: View, spec: JobSpec, given_fields: Collection[str]) -> tuple[SubmitWarning, ...]:
    """`given_fields` are the fields that the user wrote, so that a warning names the one to change.

    It runs on every submit: a requirement that many nodes satisfy is found after looking at few of them.
    """
    if all(entry.status is None for entry in view.nodes.values()):
        return ()  # without any node the user knows that the job waits
    inventory = NodeInventory(view)
    groups = (
        _constraint_warnings(inventory, spec, given_fields),
        _preference_warnings(inventory, spec),
        _resource_warnings(inventory, spec),
    )
    found = tuple(islice(chain(*groups), WARNINGS_MAX))
    return found or tuple(_combined_warnings(inventory, spec))


class NodeInventory:
    """Labels, taints and capacity of all nodes. A label is tested once per value: most nodes share it."""

    def __init__(self, view: View) -> None:
        table = view.node_table
        # The slot of a deleted node keeps its labels until another node gets it: leave such slots out.
        no_free_slots = len(view.nodes) == table.size
        slots = range(table.size) if no_free_slots else [table.slot[node] for node in view.nodes]
        self.labels = table.labels if no_free_slots else [table.labels[slot] for slot in slots]
        self.taints = table.taints if no_free_slots else [table.taints[slot] for slot in slots]
        self._slots = slice(table.size) if no_free_slots else slots
        self._table = table
        self.matching: list[int] = []  # nodes that satisfied some constraint: likely to satisfy all

    def capacity(self, resource: str) -> Array | None:
        row = self._table.rows.get(resource)
        return None if row is None else self._table.capacity[row, self._slots]

    def any_satisfies(self, constraint: Constraint) -> bool:
        seen: set[str | None] = set()
        for at, labels in enumerate(self.labels):
            value = labels.get(constraint.label)
            if value not in seen:
                seen.add(value)
                if constraint.holds(labels):
                    self.matching.append(at)
                    return True
        return False

    def values(self, label: str) -> list[str]:
        return sorted({labels[label] for labels in self.labels if label in labels})

    @cached_property
    def label_names(self) -> list[str]:
        """The names of all labels, sorted."""
        return sorted({name for labels in self.labels for name in labels})

    def copies_per_node(self, spec: JobSpec) -> Array | None:
        """How many tasks of the job each node holds when empty; None: no node has one of its resources."""
        held: Array | None = None
        for resource, amount in spec.needs.items():
            capacity = self.capacity(resource)
            if capacity is None:
                return None
            if resource == GPU and amount < WHOLE_GPU:
                copies = capacity // WHOLE_GPU * (WHOLE_GPU // amount)
            else:
                copies = capacity // amount
            held = copies if held is None else held.clip(max=copies)
        return held


def _constraint_warnings(
    inventory: NodeInventory, spec: JobSpec, given_fields: Collection[str]
) -> Iterator[SubmitWarning]:
    fields = {label: field for field, label in LABEL_SHORTHANDS.items() if field in given_fields}
    for constraint in dict.fromkeys(spec.conditions):
        if constraint == RUNTIME and not inventory.any_satisfies(constraint):
            yield SubmitWarning("image", "no node has a container runtime now")
        elif constraint == SANDBOX and not inventory.any_satisfies(constraint):
            yield SubmitWarning("sandbox", "no node has a bubblewrap that works now")
        elif not inventory.any_satisfies(constraint):
            field = fields.get(constraint.label, "where") if constraint.op is Op.EQUAL else "where"
            yield SubmitWarning(field, _unsatisfied(inventory, constraint))


def _preference_warnings(inventory: NodeInventory, spec: JobSpec) -> Iterator[SubmitWarning]:
    for preference in dict.fromkeys(spec.prefer):
        if preference.weight > 0 and not inventory.any_satisfies(preference.condition):
            yield SubmitWarning(
                "prefer", f"{_unsatisfied(inventory, preference.condition)}, so it has no effect"
            )
    domains = [("near", term.over) for term in spec.near]
    domains += [("apart", term.over) for term in spec.apart]
    domains += [("spread", term.over) for term in spec.spread]
    for field, label in dict.fromkeys(domains):
        if not any(label in labels for labels in inventory.labels):
            yield SubmitWarning(field, _no_label(inventory, label))


def _unsatisfied(inventory: NodeInventory, constraint: Constraint) -> str:
    known = inventory.values(constraint.label)
    if constraint.label == "node" and constraint.op is Op.EQUAL:
        return f"there is no node {constraint.values[0]} now{_nearest(constraint.values[0], known)}"
    if not known:
        return _no_label(inventory, constraint.label)
    few = ", ".join(known[:_VALUES_SHOWN]) + (", ..." if len(known) > _VALUES_SHOWN else "")
    return f"no node satisfies '{constraint}' now: {constraint.label} is {few}"


def _no_label(inventory: NodeInventory, label: str) -> str:
    return f"no node has the label {label} now{_nearest(label, inventory.label_names)}"


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known[:_NAMES_COMPARED], 1)
    return f"; did you mean {near[0]}?" if near else ""


def _resource_warnings(inventory: NodeInventory, spec: JobSpec) -> Iterator[SubmitWarning]:
    for resource, amount in spec.needs.items():
        capacity = inventory.capacity(resource)
        largest = 0 if capacity is None else int(capacity.max())
        field = resource if resource in _RESOURCE_FIELDS else "resources"
        if not largest:
            yield SubmitWarning(field, f"no node has any {resource} now")
        elif largest < amount:
            text = f"no node has {show_amount(resource, amount)} in all"
            yield SubmitWarning(field, f"{text}; the largest has {show_amount(resource, largest)}")


def _combined_warnings(inventory: NodeInventory, spec: JobSpec) -> Iterator[SubmitWarning]:
    """Warnings of a job whose requirements are each satisfied by some node, but not together by one."""
    copies = inventory.copies_per_node(spec)
    needed = spec.count if spec.gang else 1
    held = 0
    node_filter = _NodeFilter(spec)
    if copies is not None:
        likely = [] if spec.gang else [at for at in inventory.matching if copies[at]]
        for at in chain(likely, copies.nonzero()[0].tolist()):
            if node_filter.is_eligible(inventory.labels[at], inventory.taints[at]):
                held += int(copies[at])
                if held >= needed:
                    return
    declared = zip(inventory.labels, inventory.taints, strict=True)
    untolerated = [node_filter.untolerated(labels, taints) for labels, taints in declared]
    taints = [found for found in untolerated if found is not None]
    if not taints:
        yield SubmitWarning(
            "where", "no node satisfies all of its constraints now, though some node satisfies each of them"
        )
    elif all(taints):
        named = ", ".join(sorted({taint for found in taints for taint in found})[:_VALUES_SHOWN])
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
    """Whether labels and taints of a node admit the job. Nodes with equal ones are tested once."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._relevant_labels = tuple({constraint.label for constraint in spec.conditions})
        self._known: dict[tuple[object, ...], tuple[str, ...] | None] = {}

    def is_eligible(self, labels: Mapping[str, str], taints: tuple[str, ...]) -> bool:
        return self.untolerated(labels, taints) == ()

    def untolerated(self, labels: Mapping[str, str], taints: tuple[str, ...]) -> tuple[str, ...] | None:
        """The taints that the job does not tolerate; None: its constraints exclude the node already."""
        key = (taints, *[labels.get(label) for label in self._relevant_labels])
        if key not in self._known:
            admitted = all(constraint.holds(labels) for constraint in self._spec.conditions)
            self._known[key] = self._untolerated(taints) if admitted else None
        return self._known[key]

    def _untolerated(self, taints: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(taint for taint in taints if is_repelled(self._spec.tolerated, taint))
