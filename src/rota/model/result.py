"""Result: what an attempt says came of its work, in its own words."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId, Key


class Reporter(StrEnum):
    """Who reports the results of a job's tasks, where they do not do so themselves."""

    AGENT = "agent"


class ResultRecord(msgspec.Struct, frozen=True, omit_defaults=True):
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

    def says(self, other: "ResultRecord") -> bool:
        """Whether both say the same."""
        return (self.results, self.failure) == (other.results, other.failure)


class ResultEndpoint(msgspec.Struct, frozen=True):
    """Where tasks of a job on one node report what came of them, and by which key their tokens are made."""

    url: str  # of the server that leads
    key: str
    node: str
    ca: str = ""  # its certificate authority, where it speaks TLS by one of its own
    others: tuple[str, ...] = ()  # servers that hand it on, and one of which may lead next
    by_agent: bool = False  # the node's agent reports, with its certificate: tasks have no token

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.others)

    def for_agent(self) -> "ResultEndpoint":
        return msgspec.structs.replace(self, key="", by_agent=True)


def depth_of(value: object) -> int:
    """How deeply lists and objects are nested. Iterative, so that no input exhausts the stack."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return deepest


def result_path(job: str, index: int, attempt: int) -> str:
    """Where the result of an attempt is posted, at any server."""
    return f"/v1/jobs/{job}/tasks/{index}/attempts/{attempt}/result"
