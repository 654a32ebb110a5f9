"""After any history, no reconciler keeps waking itself while nothing changes."""

import random
from collections.abc import Callable

import pytest

from rota.apiserver.admission import actions, update
from rota.engine.reconciler import Reconciler
from rota.engine.state.mirror import Mirror
from rota.engine.time_zones import zone
from rota.model.dependency import Dependency
from rota.model.errors import Rejected
from rota.model.ids import JobId
from rota.model.job import JobKind, JobSpec, Unschedulable
from rota.model.lifecycle import NodeState
from rota.model.plan import Instant
from rota.model.shape import RunMode
from rota.reconcilers import ReconcilerSettings, reconcilers
from rota.store import codec
from rota.testing import user_requests
from rota.testing.builders import WALL_MS, job_spec
from rota.testing.stage import Stage, StageMachine

STEPS = 60
OFTEN_MS = 50  # decisions closer together than this count as polling
LOOKS = 20  # this many in a row are a loop


def drawn(draw: random.Random, number: int, now_ms: int) -> JobSpec:
    """A job of a random kind, with fields that depend on time."""
    fields: dict[str, object] = {
        "count": draw.choice([1, 1, 3]),
        "priority": draw.choice([10, 50, 90]),
        "retries": draw.choice([0, 2]),
        "after": (Dependency(JobId(str(draw.randrange(1, number)))),)
        if number > 1 and draw.random() < 0.2
        else (),
    }
    chances: list[tuple[float, str, list[object]]] = [
        (0.4, "deadline_at_ms", [WALL_MS + now_ms + left_ms for left_ms in (1, 500, 20_000, 10**7)]),
        (0.3, "queue_timeout_seconds", [0.001, 1, 60]),
        (0.2, "expect_seconds", [0.001, 5.0]),
        (0.2, "run", list(RunMode)),
        (0.1, "when_unschedulable", [Unschedulable.REJECT]),
        (0.2, "keep_seconds", [0.0, 0.001, 30.0]),
    ]
    fields |= {name: draw.choice(values) for chance, name, values in chances if draw.random() < chance}
    if draw.random() < 0.2:
        kind = draw.choice([JobKind.SERVICE, JobKind.SYSTEM])
        fields |= {
            "kind": kind,
            "retries": 0,
            "run": RunMode.AT_LEAST_ONCE,
            "count": int(kind is JobKind.SERVICE),
        }
    return job_spec(number, **fields)


class Story:
    """Random events on a stage, from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.stage = Stage()
        self.jobs = 0
        for name in "abc":
            self.stage.join(StageMachine(name, {"cpu": 2000}, {}))

    def step(self) -> None:
        events: list[Callable[[], object]] = [
            self.submit,
            self.submit,
            self.end,
            self.wish,
            self.update,
            self.harm,
            lambda: self.stage.wait(self.draw.choice([1, 1000, 35_000, 90_000])),
        ]
        self.draw.choice(events)()

    def submit(self) -> None:
        self.jobs += 1
        self.stage.submit(drawn(self.draw, self.jobs, self.stage.now_ms))

    def end(self) -> None:
        held = [(machine, task) for machine in self.stage.machines.values() for task in machine.held]
        if held:
            machine, task = self.draw.choice(held)
            machine.end(task, self.draw.choice([0, 1]), 5)
            self.stage.run_to_quiescence()

    def wish(self) -> None:
        wished = self.draw.choice([actions.pause, actions.resume, actions.cancel])
        self.ask(lambda job: lambda view, now: wished(view, job, {}, user_requests.USER, now))

    def update(self) -> None:
        patch = self.draw.choice(
            [{"deadline": None}, {"deadline": "1s"}, {"queue_timeout": "1ms"}, {"priority": 99}]
        )
        request = update.UpdateRequest(patch)
        self.ask(lambda job: lambda view, now: update.update_job(view, job, request, user_requests.USER, now))

    def ask(self, command: Callable[..., object]) -> None:
        if not self.jobs:
            return
        try:
            self.stage.ask("apiserver", command(JobId(str(self.draw.randint(1, self.jobs)))))  # type: ignore[arg-type]
        except Rejected:
            return
        self.stage.run_to_quiescence()

    def harm(self) -> None:
        machine = self.draw.choice(list(self.stage.machines.values()))
        state = self.stage.mirror.nodes[machine.name].status  # type: ignore[index]
        if machine.dispatch is None or (state is not None and state.state is NodeState.LOST):
            self.stage.call(machine)
            return
        match self.draw.randrange(3):
            case 0:
                self.stage.cut(machine)
            case 1:
                machine.crash()
                self.stage.call(machine)
            case _:
                machine.lose_keeper(self.stage.now.wall_ms)
                self.stage.run_to_quiescence()


def restless(view: Mirror, reconciler: Reconciler, key: str, now: Instant) -> bool:
    """Whether the key is decided repeatedly without an effect."""
    for _ in range(LOOKS):
        plan = reconciler.decide(view, key, now)
        acts = plan.puts or plan.deletes
        if acts or plan.wake_at_ms is None or plan.wake_at_ms >= now.ms + OFTEN_MS:
            return False
        passed_ms = max(1, plan.wake_at_ms - now.ms)
        now = Instant(now.ms + passed_ms, now.wall_ms + passed_ms)
    return True


@pytest.mark.parametrize("seed", range(20))
def test_no_reconciler_polls_while_the_state_does_not_change(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
        mirror = Mirror()
        mirror.now_ms = story.stage.now_ms
        mirror.load(codec.decode(key, value) for key, value in story.stage.records.items())
        found = [
            (reconciler.name, key)
            for reconciler in reconcilers(ReconcilerSettings(zones=zone))
            for key in reconciler.start(mirror)
            if restless(mirror, reconciler, key, story.stage.now)
        ]

        assert not found
