"""Records of which only the last of each name counts, and from which nothing is derived."""

from collections.abc import Callable
from typing import Any

from rota.model.cluster import Cluster
from rota.model.cron import Cron, CronStatus
from rota.model.ids import JobId, Key
from rota.model.job import Counters, JobGone, SubmitKey
from rota.model.namespace import Namespace
from rota.model.pace import ReportPace
from rota.model.past import Past
from rota.model.restored import Restored
from rota.model.subscriber import Subscriber


class Standing:
    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}
        self.counters = Counters()
        self.pace = ReportPace()
        self.restored: Restored | None = None
        self.clusters: dict[str, Cluster] = {}
        self.subscribers: dict[str, Subscriber] = {}
        self.past = Past()
        self.submit_keys = self.past.submit_keys
        self.crons: dict[str, Cron] = {}  # by namespace and name
        self.cron_statuses: dict[str, CronStatus] = {}

    def submitted(self, namespace: str, name: str) -> SubmitKey | None:
        return self.submit_keys.get(Key(f"submit/{namespace}/{name}"))

    def keepers(self) -> dict[type, Callable[[Any], None]]:
        """By the kind of record."""
        return {
            Counters: self._set_counters,
            ReportPace: self._set_pace,
            Restored: self._set_restored,
            Cluster: lambda record: self.clusters.update({record.name: record}),
            Namespace: lambda record: self.namespaces.update({record.name: record}),
            Subscriber: lambda record: self.subscribers.update({record.name: record}),
            Cron: lambda record: self.crons.update({record.ref: record}),
            CronStatus: lambda record: self.cron_statuses.update({record.ref: record}),
            SubmitKey: self.past.keep_key,
            JobGone: self.past.bury,
        }

    def drop(self, key: Key) -> None:
        head, _, name = key.partition("/")
        match head:
            case "submit":
                self.past.drop_key(key)
            case "gone":
                self.past.gone.pop(JobId(name), None)
            case "cron":
                self.crons.pop(name, None)
            case "cron_status":
                self.cron_statuses.pop(name, None)
            case "subscriber":
                self.subscribers.pop(name, None)
            case "namespace":
                self.namespaces.pop(name, None)
            case _:
                raise AssertionError(f"records of kind {head} are never deleted")

    def _set_counters(self, record: Counters) -> None:
        self.counters = record

    def _set_pace(self, record: ReportPace) -> None:
        self.pace = record

    def _set_restored(self, record: Restored) -> None:
        self.restored = record
