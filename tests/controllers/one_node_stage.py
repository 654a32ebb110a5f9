"""A stage with one node, for tests of the life of a job's tasks."""

from rota.engine.state.entries import JobEntry
from rota.model.ids import JobId
from rota.model.lifecycle import JobState
from rota.testing.stage import Stage, StageMachine


def stage(cpu: int = 4, **machines: int) -> Stage:
    """A stage with node a of this many CPUs, and others as given."""
    cluster = Stage()
    for name, count in ({"a": cpu} | machines).items():
        cluster.join(StageMachine(name, {"cpu": count * 1000}, {}))
    return cluster


def job(cluster: Stage, number: int = 1) -> JobEntry:
    return cluster.mirror.jobs[JobId(str(number))]


def state(cluster: Stage, number: int = 1) -> JobState | None:
    status = job(cluster, number).status
    return None if status is None else status.state


def end(cluster: Stage, index: int, code: int, number: int = 1, ran_ms: int = 60_000) -> None:
    """End the task on the node where it runs."""
    task = (JobId(str(number)), index)
    machine = next(holder for holder in cluster.machines.values() if task in holder.held)
    machine.end(task, code, ran_ms)
    cluster.run_to_quiescence()
