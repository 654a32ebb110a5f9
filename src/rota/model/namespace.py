"""Namespace: what the jobs of a group may hold together, their share, what they ask for by default."""

import msgspec

from rota.model.ids import Key

TASKS = "tasks"  # counted like a resource: live tasks, whatever they ask for


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by apiserver. A namespace without a record has no quota and weight 1."""

    name: str
    quota: dict[str, int] = {}  # resource -> the most its live tasks may hold together
    weight: int = 1  # its fair share against the other namespaces
    defaults: dict[str, int] = {}  # resource -> what a task of a job asks for that does not speak of it

    @property
    def key(self) -> Key:
        return Key(f"namespace/{self.name}")
