"""A task lost with its node whose owner is an outside controller: what is known, and what the owner says."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from rota.model.ids import JobId, Key
from rota.model.limits import TOLD_AGAIN_FIRST_MS, TOLD_AGAIN_LAST_MS


class RecoveryDecision(StrEnum):
    """What becomes of a lost task, as its owner says."""

    RETRY = "again"  # placed anew; no retry is spent
    FAIL = "fail"
    CANCEL = "cancel"
    LOST = "lost"  # acknowledged and no more: it ends as lost


class WhenControllerAbsent(StrEnum):
    """What becomes of a lost task while its owner is not connected."""

    WAIT = "wait"  # for as long as it takes
    SCHEDULER = "scheduler"  # placed anew, after a time


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """A lost attempt of which its owner has been told, and has not said what becomes of it."""

    attempt: int
    since_ms: int  # cluster time
    told_ms: int  # cluster time at which its owner was told last
    times: int = 1  # it was told


def next_notice_at_ms(told_ms: int, times: int) -> int:
    """When an unanswered notice that was told so often is told again: the pauses double, up to a bound."""
    pause_ms: int = min(TOLD_AGAIN_LAST_MS, TOLD_AGAIN_FIRST_MS * 2 ** min(times - 1, 16))
    return told_ms + pause_ms


class RecoveryAnswer(msgspec.Struct, frozen=True, array_like=True):
    attempt: int
    word: RecoveryDecision


class RecoveryAnswers(msgspec.Struct, frozen=True):
    """What a job's owner said of lost attempts, the last for each task. Written by apiserver."""

    id: JobId
    words: dict[int, RecoveryAnswer]  # by index

    @property
    def key(self) -> Key:
        return Key(f"job/{self.id}/answers")

    def on(self, index: int, attempt: int) -> RecoveryDecision | None:
        said = self.words.get(index)
        return None if said is None or said.attempt != attempt else said.word


class SubscriberPresence:
    """Which subscribers are connected, as seen by this process: an observation, never stored."""

    def __init__(self, since_ms: int = 0) -> None:
        self._since_ms = since_ms  # when this process began to look
        self._streams: dict[str, int] = {}
        self._left_ms: dict[str, int] = {}

    def connected_one(self, name: str) -> None:
        self._streams[name] = self._streams.get(name, 0) + 1

    def disconnected_one(self, name: str, now_ms: int) -> None:
        streams = self._streams.pop(name, 0) - 1
        if streams > 0:
            self._streams[name] = streams
        else:
            self._left_ms[name] = now_ms

    def connected(self, user: str) -> list[str]:
        """The names under which subscribers of this user are connected."""
        return names_of(user, self._streams)

    def is_young(self, now_ms: int, wait_ms: int) -> bool:
        """Whether this process began to look so recently that subscribers may not have reconnected yet."""
        return now_ms - self._since_ms < wait_ms

    def absent_since(self, name: str) -> int | None:
        """Cluster time; None: it is connected. Who was never seen is missed since we look."""
        return None if name in self._streams else self._left_ms.get(name, self._since_ms)


def names_of(user: str, subscribers: Iterable[str]) -> list[str]:
    """The names of this user's subscribers, of those that are given as user:name."""
    prefix = f"{user}:"
    return sorted(one.removeprefix(prefix) for one in subscribers if one.startswith(prefix))
