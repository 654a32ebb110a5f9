"""Restored: that all this was read from a backup, and whether somebody has said that nodes may follow it."""

import msgspec

from rota.model.ids import Key


class Restored(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by apiserver, first by whoever restores. What happened since the backup is not known here."""

    taken_at_ms: int  # wall clock of the backup
    restored_at_ms: int  # wall clock
    accepted: bool = False
    open_at_ms: int = 0  # cluster time from which nodes are greeted, once it was accepted

    @property
    def key(self) -> Key:
        return Key("restored/last")

    def closed(self, now_ms: int) -> bool:
        """Whether no node may be greeted yet, and so none is to be missed."""
        return not self.accepted or now_ms < self.open_at_ms
