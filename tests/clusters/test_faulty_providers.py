"""Providers that fail, lie, are slow or act twice: never above the limit, no loop, and a reason."""

from rota.clusters import machine_transitions, provider_sync
from rota.clusters.provider_sync import ProviderListing
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.lifecycle import MachineState
from rota.model.plan import Plan
from rota.testing import stage_provider
from rota.testing.builders import at, job_spec
from rota.testing.stage import Stage

INTENT = ClusterIntent("default", provider="p", capacity={"cpu": 1000}, max_nodes=3, idle_seconds=1)
NONE: frozenset[str] = frozenset()


class ElasticStage:
    """A stage with an elastic cluster, and its events."""

    def __init__(self, *, tasks: int) -> None:
        self.events: list[str] = []
        self.stage = Stage(self.events.append)
        self.stage.put(INTENT)
        self.stage.submit(job_spec(1, count=tasks))
        self.stage.wait(1000)

    @property
    def cluster(self) -> ClusterRecord:
        return self.stage.mirror.clusters["default"]

    @property
    def machines(self) -> dict[str, Machine]:
        return dict(self.stage.mirror.machines)

    def list(self, *names: str, missing: frozenset[str] = NONE, ended: frozenset[str] = NONE) -> None:
        listing = ProviderListing(
            {name: names.count(name) for name in names}, dict.fromkeys(names, ""), missing, ended
        )
        self.stage.ask("clusters", lambda view, now: provider_sync.on_listed(view, "default", listing, now))
        self.stage.run_to_quiescence()


def test_machines_with_foreign_names_are_ignored() -> None:
    elastic = ElasticStage(tasks=1)
    before = elastic.machines
    elastic.list(
        "default-" + "9" * 5000, "default-01", "default-\u0661", "default-1\n", "default-" + "0" * 10**6 + "1"
    )

    assert elastic.machines == before


def test_machines_that_fail_together_are_one_failure() -> None:
    elastic = ElasticStage(tasks=3)
    for name in list(elastic.machines):
        stage_provider.fail(elastic.stage, name, "no quota left")

    assert len(elastic.machines) == 3
    assert elastic.cluster.failures == 1
    assert elastic.cluster.paused_until_ms == elastic.stage.now_ms + 5000


def test_a_machine_not_yet_requested_is_not_abandoned() -> None:
    elastic = ElasticStage(tasks=1)
    elastic.stage.wait(3_600_000)
    (before,) = elastic.machines.values()
    stage_provider.ask(elastic.stage, before.name)
    elastic.stage.wait(130_000)

    assert before.state is MachineState.WANTED
    assert elastic.machines[before.name].state is MachineState.LEAVING
    assert any("it has not joined within 120 s" in line for line in elastic.events)


def test_a_provider_that_reports_three_and_creates_two_is_detected_by_its_list() -> None:
    elastic = ElasticStage(tasks=3)
    for name in list(elastic.machines):
        stage_provider.make(elastic.stage, name)
    elastic.list("default-1", "default-2", missing=frozenset({"default-3"}))

    assert elastic.machines["default-3"].state is MachineState.LEAVING
    assert elastic.cluster.reason == (
        "machine default-3 was given up: its provider says that it has made it, and does not list it"
    )


def test_a_duplicate_machine_counts_twice_and_is_removed() -> None:
    elastic = ElasticStage(tasks=2)
    for name in list(elastic.machines):
        stage_provider.ask(elastic.stage, name)
    elastic.list("default-1", "default-1", "default-2", "default-2")
    elastic.stage.submit(job_spec(2, count=5))
    elastic.stage.wait(3000)

    assert {name: machine.extra for name, machine in elastic.machines.items()} == {
        "default-1": 1,
        "default-2": 1,
    }


def test_a_removal_counts_only_when_the_list_confirms_it() -> None:
    elastic = ElasticStage(tasks=1)
    stage_provider.ask(elastic.stage, "default-1")
    stage_provider.fail(elastic.stage, "default-1", "no")
    elastic.list("default-1", ended=frozenset({"default-1"}))
    still = elastic.machines["default-1"]
    elastic.list(ended=frozenset({"default-1"}))

    assert (still.reason, still.stuck) == (
        "no",
        "it cannot be removed: its provider says that it has, and still lists it",
    )
    assert elastic.machines == {}
    assert "machine default-1 is gone: no" in elastic.events


def test_an_unattributed_machine_of_ours_is_removed_and_foreign_ones_are_ignored() -> None:
    elastic = ElasticStage(tasks=1)
    stage_provider.ask(elastic.stage, "default-1")
    stage_provider.fail(elastic.stage, "default-1", "no")
    stage_provider.remove(elastic.stage, "default-1")
    elastic.list("default-1", "default-77", "somebody-1", "default-x")

    assert {name: machine.state for name, machine in elastic.machines.items()} == {
        "default-1": MachineState.LEAVING
    }


def test_a_provider_that_cannot_list_is_reported() -> None:
    elastic = ElasticStage(tasks=1)
    plan = provider_sync.on_list_failed(elastic.stage.mirror, "default", "no such account", at(0))

    assert plan.why == "machines of cluster default cannot be listed: no such account"
    assert plan.puts == ()


def test_reports_on_unknown_machines_are_ignored() -> None:
    mirror = ElasticStage(tasks=1).stage.mirror
    plans = [
        machine_transitions.on_created(mirror, "x", at(0)),
        machine_transitions.on_create_failed(mirror, "x", "why", at(0)),
        machine_transitions.on_removed(mirror, "x"),
        machine_transitions.on_remove_failed(mirror, "x", "why", at(0)),
        provider_sync.on_list_failed(mirror, "x", "why", at(0)),
    ]

    assert plans == [Plan()] * 5
    assert machine_transitions.on_create_requested(mirror, "x", "", at(0)).answer is False
