"""Records of which only the last of each name counts, and from which next to nothing is derived."""

from collections.abc import Callable
from typing import Any

from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.cron import CronRecord, CronStatus
from rota.model.ended_jobs import EndedJobs
from rota.model.ids import JobId, Key
from rota.model.job import Counters, JobTombstone, SubmitKey
from rota.model.namespace import NamespaceRecord
from rota.model.report_interval import ReportInterval
from rota.model.restored import Restored
from rota.model.subscriber import Subscriber


class Tables:
    def __init__(self) -> None:
        self.namespaces: dict[str, NamespaceRecord] = {}
        self.counters = Counters()
        self.report_interval = ReportInterval()
        self.restored: Restored | None = None
        self.clusters: dict[str, ClusterRecord] = {}
        self.cluster_intents: dict[str, ClusterIntent] = {}
        self.machines: dict[str, Machine] = {}  # that providers were asked for
        self.subscribers: dict[str, Subscriber] = {}
        self.ended_jobs = EndedJobs()
        self.crons: dict[str, CronRecord] = {}  # by namespace and name
        self.cron_statuses: dict[str, CronStatus] = {}

    def submitted(self, namespace: str, name: str) -> SubmitKey | None:
        return self.ended_jobs.submit_keys.get(Key(f"submit/{namespace}/{name}"))

    def setters(self) -> dict[type, Callable[[Any], None]]:
        """By the kind of record."""
        return {
            Counters: self._set_counters,
            ReportInterval: self._set_report_interval,
            Restored: self._set_restored,
            ClusterRecord: self._set_cluster,
            ClusterIntent: self._set_cluster_intent,
            NamespaceRecord: lambda record: self.namespaces.update({record.name: record}),
            Subscriber: lambda record: self.subscribers.update({record.name: record}),
            CronRecord: lambda record: self.crons.update({record.ref: record}),
            CronStatus: lambda record: self.cron_statuses.update({record.ref: record}),
            SubmitKey: self.ended_jobs.add_key,
            JobTombstone: self.ended_jobs.add_tombstone,
        }

    def delete(self, key: Key) -> None:
        head, _, name = key.partition("/")
        match head:
            case "submit":
                self.ended_jobs.drop_key(key)
            case "gone":
                self.ended_jobs.tombstones.pop(JobId(name), None)
            case _ if head in self._by_name:
                gone = self._by_name[head].pop(name, None)
                if isinstance(gone, ClusterRecord) and gone.like is not None:
                    self.cluster_intents.pop(name, None)
            case _:
                raise AssertionError(f"records of kind {head} are never deleted")

    @property
    def _by_name(self) -> dict[str, dict[str, Any]]:
        return {
            "cron": self.crons,
            "cron_status": self.cron_statuses,
            "subscriber": self.subscribers,
            "namespace": self.namespaces,
            "cluster": self.clusters,
            "cluster_wish": self.cluster_intents,
            "machine": self.machines,
        }

    def _set_cluster(self, record: ClusterRecord) -> None:
        self.clusters[record.name] = record
        wish = self.cluster_intents.get(record.like or "")
        if wish is not None:
            self.cluster_intents[record.name] = wish.for_cluster(record)

    def _set_cluster_intent(self, record: ClusterIntent) -> None:
        """Also that of those that were made like it."""
        self.cluster_intents[record.name] = record
        for cluster in self.clusters.values():
            if cluster.like == record.name:
                self.cluster_intents[cluster.name] = record.for_cluster(cluster)

    def _set_counters(self, record: Counters) -> None:
        self.counters = record

    def _set_report_interval(self, record: ReportInterval) -> None:
        self.report_interval = record

    def _set_restored(self, record: Restored) -> None:
        self.restored = record
