"""Provider: creates, lists and removes machines. Creating the same name twice must create one machine."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from rota.model.errors import Unavailable


class ProviderFailed(Unavailable):
    """The provider did not do what was requested; the text tells every waiting user why.

    `said` is the provider's own message, for operators only: it may quote a command line with secrets.
    """

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why)
        self.said = said


class MachineOrder(NamedTuple):
    """A machine to create."""

    machine: str
    cluster: str
    join_line: str  # with which its agent joins, once; a secret
    capacity: Mapping[str, int]
    labels: Mapping[str, str]
    settings: Mapping[str, str]


class Provider(Protocol):
    @property
    def place(self) -> str:
        """The place from which its machines can be reached, stored with each of them; empty: anywhere."""

    def for_place(self, place: str) -> "Provider | None":
        """The provider for machines that were created from that place; None: out of reach from here."""

    async def create(self, order: MachineOrder) -> None:
        """Create a machine with an agent; return once it is under way. An existing one is left alone."""

    async def list(self, cluster: str, settings: Mapping[str, str]) -> Sequence[str]:
        """Names of all existing machines as ordered, one entry per machine: duplicates show."""

    async def remove(self, cluster: str, machine: str, settings: Mapping[str, str]) -> None:
        """Remove a machine with everything on it; return once it is removed. A missing one is no error."""
