"""Namespace: what the jobs of a group may hold together, their share, what they ask for by default."""

import msgspec

from rota.model.ids import Key

DEFAULT = "default"  # of jobs that name none
TASKS = "tasks"  # counted like a resource: live tasks, whatever they ask for


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
