"""Namespaces: quota, fair share, defaults and bounds, and the usage that is charged against them."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rota.model.amounts import TASKS
from rota.model.ids import Key
from rota.model.job import JobSpec
from rota.model.shape import Owner

DEFAULT = "default"  # namespace of jobs that name none


class NamespaceBounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a single job of a namespace may request, and how much its jobs may store; None: not set."""

    priority: int | None = None  # the highest
    tolerate: tuple[str, ...] | None = None  # taints, as KEY, KEY=VALUE or *
    clusters: tuple[str, ...] | None = None  # and those made like them
    jobs: int | None = None  # that have not ended
    tasks: int | None = None  # of these jobs
    stored_bytes: int | None = None  # of all jobs: commands, environments, files


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of a namespace; without a record it has no quota and weight 1. Written by apiserver."""

    name: str
    quota: dict[str, int] = {}  # resource -> the most its live tasks may hold together
    weight: int = 1  # its fair share against the other namespaces
    defaults: dict[str, int] = {}  # resource -> amount for jobs that do not name the resource
    bounds: NamespaceBounds = NamespaceBounds()

    @property
    def key(self) -> Key:
        return Key(f"namespace/{self.name}")


_RECORD_BYTES = 1024  # of a job without any text: its numbers, names and index entries


class NamespaceUsage(NamedTuple):
    """What jobs of a namespace count for: unfinished jobs, their tasks, and stored bytes of all jobs."""

    jobs: int = 0
    tasks: int = 0
    stored_bytes: int = 0

    def plus(self, other: "NamespaceUsage", sign: int = 1) -> "NamespaceUsage":
        return NamespaceUsage(
            self.jobs + sign * other.jobs,
            self.tasks + sign * other.tasks,
            self.stored_bytes + sign * other.stored_bytes,
        )


def usage_of(spec: JobSpec) -> NamespaceUsage:
    """The usage of one unfinished job."""
    texts = [*spec.command, *spec.env, *spec.env.values(), *spec.labels, *spec.labels.values()]
    for step in spec.steps:
        texts += [*step.command, *step.env, *step.env.values()]
    files = sum(len(path) + len(content) for path, content in spec.files.items())
    return NamespaceUsage(1, spec.size, _RECORD_BYTES + files + sum(map(len, texts)))


def ended_usage(usage: NamespaceUsage) -> NamespaceUsage:
    """The usage of the same job once it has ended: its bytes count until it is deleted."""
    return NamespaceUsage(0, 0, usage.stored_bytes)


class UsageAccounts:
    """Reserved amounts and live tasks per namespace and per owner. Written only by the mirror."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, dict[str, int]] = {}
        self.by_owner: dict[Owner, dict[str, int]] = {}
        self.served: dict[str | Owner, int] = {}  # by namespace and by owner: number of its last placement
        self._servings = 0  # counts placements, so that a smaller number is longer ago
        self.released: dict[str, int] = {}  # by namespace: how often it released something
        self.usage: dict[str, NamespaceUsage] = {}  # by namespace; empty ones have no entry

    def add(self, namespace: str, usage: NamespaceUsage, sign: int = 1) -> None:
        """Add the usage of a job to its namespace; with sign -1, subtract it."""
        now = self.usage.get(namespace, NamespaceUsage()).plus(usage, sign)
        if any(now):
            self.usage[namespace] = now
        else:
            self.usage.pop(namespace, None)

    def charge(self, owner: Owner, needs: Iterable[tuple[str, int]], tasks: int) -> None:
        """Charge an owner for tasks with these needs; a negative number of tasks releases."""
        in_namespace = self.by_namespace.setdefault(owner.namespace, {})
        if tasks < 0:
            self.released[owner.namespace] = self.released.get(owner.namespace, 0) + 1
        else:
            self._servings += 1
            self.served[owner.namespace] = self.served[owner] = self._servings
        for held in (in_namespace, self.by_owner.setdefault(owner, {})):
            held[TASKS] = held.get(TASKS, 0) + tasks
            for resource, amount in needs:
                held[resource] = held.get(resource, 0) + amount * tasks
