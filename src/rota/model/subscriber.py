"""Subscriber: an outside controller's name and the last event it acknowledged."""

import msgspec

from rota.model.ids import Key


class Subscriber(msgspec.Struct, frozen=True):
    """Written by apiserver."""

    name: str
    revision: int
    index: int

    @property
    def key(self) -> Key:
        return Key(f"subscriber/{self.name}")
