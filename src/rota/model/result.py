"""Results that attempts report about themselves: figures as JSON, or a reason of failure."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId, Key


class Reporter(StrEnum):
    """The process that reports the results of a job's tasks, if not the tasks themselves."""

    AGENT = "agent"


class ResultRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an attempt; it is written once and never changes. Written by apiserver."""

    job: JobId
    index: int
    attempt: int
    results: bytes = b"{}"  # a JSON object with sorted names, so that equal results are equal bytes
    failure: str | None = None  # why the attempt failed, whatever its exit code
    at_ms: int = 0  # wall clock

    @property
    def key(self) -> Key:
        return Key(f"result/{self.job}/{self.index}.{self.attempt}")

    @property
    def size(self) -> int:
        return len(self.results) + len(self.failure or "")

    def has_same_content(self, other: "ResultRecord") -> bool:
        """Whether both have the same content."""
        return (self.results, self.failure) == (other.results, other.failure)


class ResultEndpoint(msgspec.Struct, frozen=True):
    """Where tasks of a job on one node report results, and the key from which their tokens are derived."""

    url: str  # of the leader
    key: str
    node: str
    ca: str = ""  # certificate of the server's own CA, if it uses that for TLS
    others: tuple[str, ...] = ()  # other servers, which forward to the leader
    by_agent: bool = False  # the agent reports, with its certificate: tasks have no token

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
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return deepest


def result_path(job: str, index: int, attempt: int) -> str:
    """The path at which the result of an attempt is posted, at any server."""
    return f"/v1/jobs/{job}/tasks/{index}/attempts/{attempt}/result"
