"""A stage with one node, for tests of the life of a job's tasks."""

from rota.engine.state.entries import JobEntry
from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.testing.stage import Stage, StageMachine


def stage(cpu: int = 4, **machines: int) -> Stage:
    """A stage with node a of this many CPUs, and others as given."""
    made = Stage()
    for name, count in ({"a": cpu} | machines).items():
        made.join(StageMachine(name, {"cpu": count * 1000}, {}))
    return made


def job(made: Stage, number: int = 1) -> JobEntry:
    return made.mirror.jobs[JobId(str(number))]


def state(made: Stage, number: int = 1) -> JobState | None:
    status = job(made, number).status
    return None if status is None else status.state


def end(made: Stage, index: int, code: int, number: int = 1, ran_ms: int = 60_000) -> None:
    """End the task on the node where it runs."""
    task = (JobId(str(number)), index)
    machine = next(one for one in made.machines.values() if task in one.held)
    machine.end(task, code, ran_ms)
    made.run_to_quiescence()
