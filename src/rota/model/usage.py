"""Accounts: what each namespace and each user holds of the cluster, and what is kept for its jobs."""

from collections.abc import Iterable
from typing import NamedTuple

from rota.model.job import JobSpec
from rota.model.namespace import TASKS
from rota.model.shape import Owner

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
