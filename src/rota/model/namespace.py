"""Namespace: what the jobs of one group may hold together, and their share against the others."""

import msgspec

from rota.model.ids import Key

TASKS = "tasks"  # counted like a resource: live tasks, whatever they ask for


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by apiserver. A namespace without a record has no quota and weight 1."""

    name: str
    quota: dict[str, int] = {}  # resource -> the most its live tasks may hold together
    weight: int = 1  # its fair share against the other namespaces

    @property
    def key(self) -> Key:
        return Key(f"namespace/{self.name}")
