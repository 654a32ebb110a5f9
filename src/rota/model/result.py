"""Result: what an attempt says came of its work, in its own words."""

import msgspec

from rota.model.ids import JobId, Key


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by apiserver, once for an attempt: what was said is never unsaid."""

    job: JobId
    index: int
    attempt: int
    results: bytes = b"{}"  # an object of JSON, its names in order, so that what is equal is the same
    failure: str | None = None  # why its work has failed, whatever its exit code
    at_ms: int = 0  # wall clock

    @property
    def key(self) -> Key:
        return Key(f"result/{self.job}/{self.index}.{self.attempt}")

    @property
    def size(self) -> int:
        return len(self.results) + len(self.failure or "")

    def says(self, other: "Result") -> bool:
        """Whether both say the same."""
        return (self.results, self.failure) == (other.results, other.failure)


class ReportDoor(msgspec.Struct, frozen=True):
    """Where tasks of a job on one node report what came of them, and by which key their tokens are made."""

    url: str  # of the server that leads
    key: str
    node: str
    ca: str = ""  # its certificate authority, where it speaks TLS by one of its own
    others: tuple[str, ...] = ()  # servers that hand it on, and one of which may lead next
