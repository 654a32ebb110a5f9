"""Records of which only the last of each name counts, and from which next to nothing is derived."""

from collections.abc import Callable
from typing import Any

from rota.model.cluster import Cluster, ClusterWish, Machine
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
        self.cluster_wishes: dict[str, ClusterWish] = {}
        self.machines: dict[str, Machine] = {}  # that providers were asked for
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
            Cluster: self._set_cluster,
            ClusterWish: self._set_cluster_wish,
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
            case _ if head in self._by_name:
                gone = self._by_name[head].pop(name, None)
                if isinstance(gone, Cluster) and gone.like is not None:
                    self.cluster_wishes.pop(name, None)
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
            "cluster_wish": self.cluster_wishes,
            "machine": self.machines,
        }

    def _set_cluster(self, record: Cluster) -> None:
        self.clusters[record.name] = record
        wish = self.cluster_wishes.get(record.like or "")
        if wish is not None:
            self.cluster_wishes[record.name] = wish.for_another(record)

    def _set_cluster_wish(self, record: ClusterWish) -> None:
        """Also that of those that were made like it."""
        self.cluster_wishes[record.name] = record
        for cluster in self.clusters.values():
            if cluster.like == record.name:
                self.cluster_wishes[cluster.name] = record.for_another(cluster)

    def _set_counters(self, record: Counters) -> None:
        self.counters = record

    def _set_pace(self, record: ReportPace) -> None:
        self.pace = record

    def _set_restored(self, record: Restored) -> None:
        self.restored = record
