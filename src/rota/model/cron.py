"""CronRecord: a job template with a schedule. CronStatus: the last processed instant, and the runs."""

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
    """What to do with instants that were missed because the server was down or the clock jumped."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class CronRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cron as its user created it. Written by apiserver."""

    namespace: str
    name: str
    schedule: str
    template: JobSpec  # without an id
    zone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    missed: MissedRuns = MissedRuns.ONCE
    history: int = 10  # ended runs whose jobs are retained
    user: str = ""
    created_at_ms: int = 0  # wall clock
    paused: bool = False

    @property
    def ref(self) -> str:
        """The name with its namespace, which is unique."""
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> Key:
        return Key(f"cron/{self.ref}")

    def child_name(self, instant_ms: int) -> str:
        """The job name of one run: job names of users cannot contain @."""
        at = EPOCH + timedelta(milliseconds=instant_ms)
        return f"{self.name}@{at:%Y%m%dT%H%M%S}Z" if at.second else f"{self.name}@{at:%Y%m%dT%H%M}Z"


class CronRun(msgspec.Struct, frozen=True):
    """One job of a cron, and the instant that it was scheduled for."""

    instant_ms: int  # wall clock
    job: JobId


class CronStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a cron. Written in one transaction with the job of a run, so no instant runs twice."""

    namespace: str
    name: str
    last_ms: int  # every instant up to here was processed
    runs: tuple[CronRun, ...] = ()  # oldest first
    skipped: int = 0  # instants without a run, in total
    reason: str | None = None  # why the last skipped one had none

    @property
    def ref(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def key(self) -> Key:
        return Key(f"cron_status/{self.ref}")
