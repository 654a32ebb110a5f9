"""Subscriber: an outside controller's name and the last event it acknowledged."""

import msgspec

from rota.model.ids import Key


class Subscriber(msgspec.Struct, frozen=True):
    """Written by apiserver."""

    name: str
    revision: int
    index: int
    owner: str = ""  # of the token that keeps it; empty: kept before owners were noted

    def belongs_to(self, owner: str) -> bool:
        """Whether it was not kept by a former holder of the token's name."""
        return not self.owner or self.owner == owner

    @property
    def key(self) -> Key:
        return Key(f"subscriber/{self.name}")
