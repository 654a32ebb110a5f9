"""Providers that fail, lie, are slow or act twice: never above the limit, no loop, and a reason."""

from rota.clusters import machine_transitions, provider_sync
from rota.clusters.provider_sync import ProviderListing
from rota.model.cluster import ClusterIntent, ClusterRecord, Machine
from rota.model.lifecycle import MachineState
from rota.model.plan import Plan
from rota.testing import stage_provider
from rota.testing.builders import at, job_spec
from rota.testing.stage import Stage

WISH = ClusterIntent("default", provider="p", capacity={"cpu": 1000}, max_nodes=3, idle_seconds=1)
NONE: frozenset[str] = frozenset()


class Told:
    """A stage with an elastic cluster, and its events."""

    def __init__(self, *, tasks: int) -> None:
        self.lines: list[str] = []
        self.stage = Stage(self.lines.append)
        self.stage.put(WISH)
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
    told = Told(tasks=1)
    before = told.machines
    told.list(
        "default-" + "9" * 5000, "default-01", "default-\u0661", "default-1\n", "default-" + "0" * 10**6 + "1"
    )

    assert told.machines == before


def test_machines_that_fail_together_are_one_failure() -> None:
    told = Told(tasks=3)
    for name in list(told.machines):
        stage_provider.fail(told.stage, name, "no quota left")

    assert len(told.machines) == 3
    assert told.cluster.failures == 1
    assert told.cluster.paused_until_ms == told.stage.now_ms + 5000


def test_a_machine_not_yet_requested_is_not_abandoned() -> None:
    told = Told(tasks=1)
    told.stage.wait(3_600_000)
    (before,) = told.machines.values()
    stage_provider.ask(told.stage, before.name)
    told.stage.wait(130_000)

    assert before.state is MachineState.WANTED
    assert told.machines[before.name].state is MachineState.LEAVING
    assert any("it has not joined within 120 s" in line for line in told.lines)


def test_a_provider_that_reports_three_and_creates_two_is_detected_by_its_list() -> None:
    told = Told(tasks=3)
    for name in list(told.machines):
        stage_provider.make(told.stage, name)
    told.list("default-1", "default-2", missing=frozenset({"default-3"}))

    assert told.machines["default-3"].state is MachineState.LEAVING
    assert told.cluster.reason == (
        "machine default-3 was given up: its provider says that it has made it, and does not list it"
    )


def test_a_duplicate_machine_counts_twice_and_is_removed() -> None:
    told = Told(tasks=2)
    for name in list(told.machines):
        stage_provider.ask(told.stage, name)
    told.list("default-1", "default-1", "default-2", "default-2")
    told.stage.submit(job_spec(2, count=5))
    told.stage.wait(3000)

    assert {name: machine.extra for name, machine in told.machines.items()} == {
        "default-1": 1,
        "default-2": 1,
    }


def test_a_removal_counts_only_when_the_list_confirms_it() -> None:
    told = Told(tasks=1)
    stage_provider.ask(told.stage, "default-1")
    stage_provider.fail(told.stage, "default-1", "no")
    told.list("default-1", ended=frozenset({"default-1"}))
    still = told.machines["default-1"]
    told.list(ended=frozenset({"default-1"}))

    assert (still.reason, still.stuck) == (
        "no",
        "it cannot be removed: its provider says that it has, and still lists it",
    )
    assert told.machines == {}
    assert "machine default-1 is gone: no" in told.lines


def test_an_unattributed_machine_of_ours_is_removed_and_foreign_ones_are_ignored() -> None:
    told = Told(tasks=1)
    stage_provider.ask(told.stage, "default-1")
    stage_provider.fail(told.stage, "default-1", "no")
    stage_provider.remove(told.stage, "default-1")
    told.list("default-1", "default-77", "somebody-1", "default-x")

    assert {name: machine.state for name, machine in told.machines.items()} == {
        "default-1": MachineState.LEAVING
    }


def test_a_provider_that_cannot_list_is_reported() -> None:
    told = Told(tasks=1)
    plan = provider_sync.on_list_failed(told.stage.mirror, "default", "no such account", at(0))

    assert plan.why == "machines of cluster default cannot be listed: no such account"
    assert plan.puts == ()


def test_reports_on_unknown_machines_are_ignored() -> None:
    mirror = Told(tasks=1).stage.mirror
    plans = [
        machine_transitions.on_created(mirror, "x", at(0)),
        machine_transitions.on_create_failed(mirror, "x", "why", at(0)),
        machine_transitions.on_removed(mirror, "x"),
        machine_transitions.on_remove_failed(mirror, "x", "why", at(0)),
        provider_sync.on_list_failed(mirror, "x", "why", at(0)),
    ]

    assert plans == [Plan()] * 5
    assert machine_transitions.on_create_requested(mirror, "x", "", at(0)).answer is False
