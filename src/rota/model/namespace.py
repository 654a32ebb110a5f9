"""Namespaces: quota, fair share, defaults and bounds, and the usage that is charged against them."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rota.model.amounts import TASKS
from rota.model.ids import Key
from rota.model.job import JobSpec
from rota.model.shape import Owner

DEFAULT = "default"  # of jobs that name none


class NamespaceBounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a single job of a namespace may ask for, and how much of all jobs is kept; None: not set."""

    priority: int | None = None  # the highest
    tolerate: tuple[str, ...] | None = None  # taints, as KEY, KEY=VALUE or *
    clusters: tuple[str, ...] | None = None  # and those made like them
    jobs: int | None = None  # that have not ended
    tasks: int | None = None  # of these jobs
    stored_bytes: int | None = None  # of all jobs: commands, environments, files


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by apiserver. A namespace without a record has no quota and weight 1."""

    name: str
    quota: dict[str, int] = {}  # resource -> the most its live tasks may hold together
    weight: int = 1  # its fair share against the other namespaces
    defaults: dict[str, int] = {}  # resource -> what a task of a job asks for that does not speak of it
    bounds: NamespaceBounds = NamespaceBounds()

    @property
    def key(self) -> Key:
        return Key(f"namespace/{self.name}")


_RECORD_BYTES = 1024  # of a job without any text: its numbers, names and places in indexes


class NamespaceUsage(NamedTuple):
    """What is kept for jobs: how many have not ended, their tasks, and the bytes of all."""

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
    """What one unfinished job counts for."""
    texts = [*spec.command, *spec.env, *spec.env.values(), *spec.labels, *spec.labels.values()]
    for step in spec.steps:
        texts += [*step.command, *step.env, *step.env.values()]
    files = sum(len(path) + len(content) for path, content in spec.files.items())
    return NamespaceUsage(1, spec.size, _RECORD_BYTES + files + sum(map(len, texts)))


def ended_usage(kept: NamespaceUsage) -> NamespaceUsage:
    """What the same job counts for once it has ended: its bytes are kept until it expires."""
    return NamespaceUsage(0, 0, kept.stored_bytes)


class UsageAccounts:
    """Reserved amounts and live tasks, added up. Written only by the mirror."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, dict[str, int]] = {}
        self.by_owner: dict[Owner, dict[str, int]] = {}
        self.served: dict[str | Owner, int] = {}  # by namespace and by owner: when it was last given room
        self._servings = 0  # which is counted, so that a smaller number is longer ago
        self.released: dict[str, int] = {}  # by namespace: how often it gave something back
        self.usage: dict[str, NamespaceUsage] = {}  # by namespace; what is empty has no entry

    def add(self, namespace: str, kept: NamespaceUsage, sign: int = 1) -> None:
        """Something more is kept for jobs of a namespace; with sign -1, no longer."""
        now = self.usage.get(namespace, NamespaceUsage()).plus(kept, sign)
        if any(now):
            self.usage[namespace] = now
        else:
            self.usage.pop(namespace, None)

    def charge(self, owner: Owner, needs: Iterable[tuple[str, int]], tasks: int) -> None:
        """So many tasks more (a negative number: fewer) hold room."""
        ours = self.by_namespace.setdefault(owner.namespace, {})
        if tasks < 0:
            self.released[owner.namespace] = self.released.get(owner.namespace, 0) + 1
        else:
            self._servings += 1
            self.served[owner.namespace] = self.served[owner] = self._servings
        for held in (ours, self.by_owner.setdefault(owner, {})):
            held[TASKS] = held.get(TASKS, 0) + tasks
            for resource, amount in needs:
                held[resource] = held.get(resource, 0) + amount * tasks
