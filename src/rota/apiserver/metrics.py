"""Metrics for Prometheus: counters of this process, gauges of the cluster; never one per task or node. [I/O]

The number of series is bounded by the code: no name of a job, node, user or namespace becomes a label.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import add

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from rota.apiserver.views import certificates, jobs
from rota.apiserver.views.nodes import node_eligibility, node_state
from rota.engine.parking import FaultStage
from rota.engine.run import Committed
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.identity.expiry import Expiry
from rota.model.amounts import CPU, DISK, GPU, MEMORY, WHOLE_GPU
from rota.model.lifecycle import JobState, NodeState
from rota.model.node import Eligibility
from rota.model.plan import EventRecord
from rota.rules.disruption import BrakeLevel, SilentNodes
from rota.rules.phases import Phase

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_UNITS = {
    CPU: ("cpu_cores", 1000),
    MEMORY: ("memory_bytes", 1),
    DISK: ("disk_bytes", 1),
    GPU: ("gpus", WHOLE_GPU),
}


class MetricCounters:
    """Counters since the start of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "rota_http_requests", "requests answered", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "rota_http_request_seconds",
            "from a request to the head of its response",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._commits = Counter("rota_commits", "commits to the store", registry=self.registry)
        self._records = Counter("rota_records", "records written or deleted", registry=self.registry)
        self._events = Counter("rota_events", "events, by kind", ("kind",), registry=self.registry)
        self._attempts = Counter(
            "rota_attempts_ended", "attempts that ended, by how", ("state",), registry=self.registry
        )
        self._jobs = Counter("rota_jobs_ended", "jobs that ended, by how", ("state",), registry=self.registry)

    def count_response(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.observe(seconds)

    def on_commit(self, committed: Committed) -> None:
        """Count a commit: a commit hook of the engine."""
        # A full reload calls the hooks as well, without a commit.
        if not committed.decided.commits:
            return
        self._commits.inc()
        self._records.inc(len(committed.decided.puts) + len(committed.decided.deletes))
        for event in committed.events:
            self._count(event)

    def _count(self, event: EventRecord) -> None:
        self._events.labels(event.kind).inc()
        if event.kind == "task.ended":
            tasks = sum(last - first + 1 for first, last in event.indices) or 1
            self._attempts.labels(event.state or "unknown").inc(tasks)
        if event.kind == "job.ended":
            self._jobs.labels(event.state or "unknown").inc()


class ClusterTotals:
    """Jobs and tasks by state, added up in batches, so that counting does not block the event loop."""

    def __init__(self) -> None:
        self.jobs = collections.Counter({state.value: 0 for state in JobState})
        self._phases = [0] * len(Phase)

    def add(self, entries: Iterable[JobEntry]) -> None:
        for entry in entries:
            self.jobs[jobs.state_of(entry).value] += 1
            # Ended jobs would dominate the gauge until they expire; `rota_jobs` counts them by state.
            if not jobs.has_ended(entry):
                self._phases = list(map(add, self._phases, entry.task_counts.by_phase))

    @property
    def tasks(self) -> dict[str, int]:
        return jobs.counts_by_state(self._phases)


def render(counts: MetricCounters, gauges: Iterable[Metric]) -> bytes:
    """The metrics in the text format of Prometheus."""
    return generate_latest(_CombinedRegistry(counts.registry, gauges))


class _CombinedRegistry(CollectorRegistry):
    """Counters of the process, and gauges that were computed for this scrape."""

    def __init__(self, counts: CollectorRegistry, gauges: Iterable[Metric]) -> None:
        super().__init__()
        self._counts = counts
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from self._counts.collect()
        yield from self._gauges


def cluster_metrics(mirror: Mirror, totals: ClusterTotals) -> Iterator[Metric]:
    yield _labelled_gauge("rota_jobs", "jobs, by state, until their retention ends", "state", totals.jobs)
    yield _labelled_gauge("rota_tasks", "tasks of jobs that have not ended, by state", "state", totals.tasks)
    nodes = collections.Counter({state.value: 0 for state in NodeState})
    eligible = collections.Counter({eligibility.value: 0 for eligibility in Eligibility})
    for entry in mirror.nodes.values():
        nodes[node_state(entry).value] += 1
        eligible[node_eligibility(entry).value] += 1
    yield _labelled_gauge("rota_nodes", "nodes, by state", "state", nodes)
    yield _labelled_gauge("rota_nodes_eligible", "nodes, by whether they take work", "eligibility", eligible)
    waiting = sum(len(ranks) for _, ranks in mirror.pending_queues())
    yield _gauge("rota_jobs_waiting", "jobs that wait for free resources", waiting)
    level = list(BrakeLevel).index(SilentNodes(mirror).worst(mirror).level)
    yield _gauge(
        "rota_brake_level", "work of silent nodes is started elsewhere: 0 yes, 1 slowed, 2 not", level
    )
    yield from _resource_metrics(mirror)


def _resource_metrics(mirror: Mirror) -> Iterator[Metric]:
    capacity: collections.Counter[str] = collections.Counter()
    for entry in mirror.nodes.values():
        if entry.status is not None and entry.status.state in (NodeState.READY, NodeState.SUSPECT):
            capacity.update({resource: entry.status.capacity.get(resource, 0) for resource in _UNITS})
    for resource, (name, unit) in _UNITS.items():
        row = mirror.node_table.rows.get(resource)
        reserved = 0 if row is None else int(mirror.node_table.reserved[row].sum())
        yield _gauge(
            f"rota_capacity_{name}", "resources of nodes that are ready or suspect", capacity[resource] / unit
        )
        yield _gauge(f"rota_reserved_{name}", "resources reserved for attempts", reserved / unit)


def certificate_metrics(own: Iterable[Expiry], mirror: Mirror, now: datetime) -> Iterator[Metric]:
    """Expiry of the server's certificates and of the first of connected nodes; how many nodes are late."""
    text = "when a certificate of this server expires, in seconds since 1970"
    family = GaugeMetricFamily("rota_certificate_expires_timestamp_seconds", text, labels=("certificate",))
    for expiry in own:
        family.add_metric((expiry.name,), expiry.period.end.timestamp())
    yield family
    first_ms = certificates.first_node_expiry_ms(mirror)
    if first_ms is not None:
        text = "when the first certificate of a node that is connected expires, in seconds since 1970"
        yield _gauge("rota_node_certificate_expires_first_timestamp_seconds", text, first_ms / 1000)
    ending = certificates.expiring_nodes(mirror, now)
    late = sum(node.state in certificates.CONNECTED for node in ending)
    text = "connected nodes whose certificate has less than a fifth of its life left"
    yield _gauge("rota_node_certificates_late", text, late)


def server_metrics(version: str, store: str, figures: dict[str, tuple[str, float]]) -> Iterator[Metric]:
    """`figures` are the values of gauges by name, each with its description."""
    family = GaugeMetricFamily("rota_info", "which server this is", labels=("version", "store"))
    family.add_metric((version, store), 1)
    yield family
    for name, (text, value) in figures.items():
        yield _gauge(name, text, value)


def fault_metrics(counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily("rota_faults", "exceptions that were contained, by where", labels=("stage",))
    for stage in FaultStage:
        family.add_metric((stage.value,), counts.get(stage, 0))
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled_gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((str(key),), value)
    return family
