"""Cluster: a named group of nodes. The one called `default` always exists."""

import msgspec

from rota.model.ids import Key

DEFAULT = "default"


class Cluster(msgspec.Struct, frozen=True):
    """Written by clusters."""

    name: str

    @property
    def key(self) -> Key:
        return Key(f"cluster/{self.name}")
