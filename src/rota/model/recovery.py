"""A task lost with its node whose owner is an outside controller: what is known, and what the owner says."""

from enum import StrEnum

import msgspec

from rota.model.ids import JobId, Key


class Word(StrEnum):
    """What becomes of a lost task, as its owner says."""

    AGAIN = "again"  # placed anew; no retry is spent
    FAIL = "fail"
    CANCEL = "cancel"
    LOST = "lost"  # acknowledged and no more: it ends as lost


class Absence(StrEnum):
    """What becomes of a lost task while its owner is not connected."""

    WAIT = "wait"  # for as long as it takes
    SCHEDULER = "scheduler"  # placed anew, after a time


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """A lost attempt of which its owner has been told, and has not said what becomes of it."""

    attempt: int
    since_ms: int  # cluster time
    told_ms: int  # cluster time at which its owner was told last
    times: int = 1  # it was told


class Answer(msgspec.Struct, frozen=True, array_like=True):
    attempt: int
    word: Word


class JobAnswers(msgspec.Struct, frozen=True):
    """What a job's owner said of lost attempts, the last for each task. Written by apiserver."""

    id: JobId
    words: dict[int, Answer]  # by index

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/answers")

    def on(self, index: int, attempt: int) -> Word | None:
        said = self.words.get(index)
        return None if said is None or said.attempt != attempt else said.word


class Presence:
    """Which subscribers are connected, as seen by this process: an observation, never stored."""

    def __init__(self, since_ms: int = 0) -> None:
        self._since_ms = since_ms  # when this process began to look
        self._streams: dict[str, int] = {}
        self._left_ms: dict[str, int] = {}

    def came(self, name: str) -> None:
        self._streams[name] = self._streams.get(name, 0) + 1

    def went(self, name: str, now_ms: int) -> None:
        streams = self._streams.pop(name, 0) - 1
        if streams > 0:
            self._streams[name] = streams
        else:
            self._left_ms[name] = now_ms

    def absent_since(self, name: str) -> int | None:
        """Cluster time; None: it is connected. Who was never seen is missed since we look."""
        return None if name in self._streams else self._left_ms.get(name, self._since_ms)
