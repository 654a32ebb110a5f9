"""Last-write-wins records without indexes: namespaces, clusters, machines, subscribers, crons, counters.

The mirror owns one `Tables` and shares its dictionaries with readers, so they are filled in place and never
replaced. The one thing derived here is the intent of clusters that were created like another one.
"""

from collections.abc import Callable
from typing import Any

from rota.model.adoption import Restored
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.cron import CronRecord, CronStatus
from rota.model.ended_jobs import EndedJobs
from rota.model.ids import JobId, Key
from rota.model.job import Counters, JobTombstone, SubmitKey
from rota.model.namespace import NamespaceRecord
from rota.model.node import ReportInterval
from rota.model.subscriber import Subscriber


class Tables:
    def __init__(self) -> None:
        self.namespaces: dict[str, NamespaceRecord] = {}
        self.counters = Counters()
        self.report_interval = ReportInterval()
        self.restored: Restored | None = None
        self.clusters: dict[str, ClusterRecord] = {}
        self.cluster_intents: dict[str, ClusterIntent] = {}
        self.machines: dict[str, Machine] = {}  # machines requested from providers
        self.subscribers: dict[str, Subscriber] = {}
        self.ended_jobs = EndedJobs()
        self.crons: dict[str, CronRecord] = {}  # by namespace and name
        self.cron_statuses: dict[str, CronStatus] = {}

    def submitted(self, namespace: str, name: str) -> SubmitKey | None:
        return self.ended_jobs.submit_keys.get(Key(f"submit/{namespace}/{name}"))

    def setters(self) -> dict[type, Callable[[Any], None]]:
        """By type of record."""
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
                deleted = self._by_name[head].pop(name, None)
                if isinstance(deleted, ClusterRecord) and deleted.like is not None:
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
        intent = self.cluster_intents.get(record.like or "")
        if intent is not None:
            self.cluster_intents[record.name] = intent.for_cluster(record)

    def _set_cluster_intent(self, record: ClusterIntent) -> None:
        """Set the intent of a cluster, and of the clusters that were created like it."""
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
