"""Provider: who makes machines and ends them. Asked twice for one name, it makes one."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rota.model.errors import Unavailable


class ProviderFailed(Unavailable):
    """What was asked for was not done; its text says why to every user that waits for it.

    `said`: the provider's own words, for operators only. They may quote a command line, and keys in it.
    """

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why)
        self.said = said


class MachineOrder(NamedTuple):
    """A machine that is wanted."""

    machine: str
    cluster: str
    join_line: str  # the line with which its agent joins, once; a secret
    capacity: Mapping[str, int]
    labels: Mapping[str, str]
    settings: Mapping[str, str]


class Provider(Protocol):
    @property
    def place(self) -> str:
        """From where its machines can be reached, kept with each of them; empty: from anywhere."""

    def for_place(self, place: str) -> "Provider | None":
        """The same for machines that were made from that place; None: they are out of reach here."""

    async def create(self, order: MachineOrder) -> None:
        """Make it, with an agent on it; return when it is on its way. One that is there is left alone."""

    async def list(self, cluster: str, settings: Mapping[str, str]) -> Sequence[str]:
        """The machines there are, by the names they were ordered under; one name for each of them."""

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        """End it with all that is on it; return when it is gone. One that is not there is no error."""
