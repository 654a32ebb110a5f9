"""Cron: a job that is submitted again and again at planned instants; CronStatus: how far it has got."""

from datetime import timedelta
from enum import StrEnum

import msgspec

from rota.model.amounts import EPOCH
from rota.model.ids import JobId, Key
from rota.model.job import JobSpec


class Overlap(StrEnum):
    """What to do when a run is due and an earlier one has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"


class MissedRuns(StrEnum):
    """What to do with instants at which nobody could act: the server was away, or the clock jumped."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class CronRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user wishes. Written by apiserver."""

    namespace: str
    name: str
    schedule: str
    template: JobSpec  # without a number
    zone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    missed: MissedRuns = MissedRuns.ONCE
    history: int = 10  # ended runs of which the jobs are kept
    user: str = ""
    created_at_ms: int = 0  # wall clock
    paused: bool = False

    @property
    def ref(self) -> str:
        """Its name among all namespaces."""
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> Key:
        return Key(f"cron/{self.ref}")

    def child_name(self, instant_ms: int) -> str:
        """No job that a user names has an @ in it."""
        at = EPOCH + timedelta(milliseconds=instant_ms)
        return f"{self.name}@{at:%Y%m%dT%H%M%S}Z" if at.second else f"{self.name}@{at:%Y%m%dT%H%M}Z"


class CronRun(msgspec.Struct, frozen=True):
    """One of its jobs, and the instant for which it was planned."""

    instant_ms: int  # wall clock
    job: JobId


class CronStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written with the job of the last instant, in one transaction: so no instant has two."""

    namespace: str
    name: str
    last_ms: int  # every instant up to here was dealt with
    runs: tuple[CronRun, ...] = ()  # oldest first
    skipped: int = 0  # instants without a run, ever
    reason: str | None = None  # why the last one had none

    @property
    def ref(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> Key:
        return Key(f"cron_status/{self.ref}")
