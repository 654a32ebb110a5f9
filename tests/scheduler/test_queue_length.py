"""The length of the queue is reported when it builds up, doubles, halves and ends; not at every change."""

from rota.engine.state.mirror import Mirror
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.limits import QUEUE_LENGTH_CHECK_MS
from rota.scheduler.queue_length import QueueLength
from rota.testing.builders import at, job_spec


def pending(count: int) -> Mirror:
    """A cluster without nodes and with this many pending tasks."""
    mirror = Mirror()
    wait(mirror, 1, count)
    return mirror


def wait(mirror: Mirror, job: int, count: int) -> None:
    if count:
        spec = job_spec(job, count=count)
        for record in (spec, JobStatus(spec.id, JobState.ACTIVE)):
            mirror.apply(record)


def reported(queue: QueueLength, mirror: Mirror) -> dict[str, int] | None:
    plan = queue.decide(mirror, "queue", at(0))
    assert plan.wake_at_ms == QUEUE_LENGTH_CHECK_MS
    assert len(plan.events) <= 1
    return plan.events[0].counts if plan.events else None


def test_the_first_decision_reports_even_an_empty_queue() -> None:
    queue = QueueLength()

    assert reported(queue, pending(0)) == {"jobs": 0, "tasks": 0}


def test_a_queue_is_reported_again_only_when_it_has_doubled_or_is_empty() -> None:
    queue, mirror = QueueLength(), pending(4)

    assert reported(queue, mirror) == {"jobs": 1, "tasks": 4}
    assert reported(queue, mirror) is None
    wait(mirror, 2, 3)
    assert reported(queue, mirror) is None
    wait(mirror, 3, 1)
    assert reported(queue, mirror) == {"jobs": 3, "tasks": 8}
    for job in list(mirror.jobs):
        mirror.apply(JobStatus(job, JobState.CANCELED))
    assert reported(queue, mirror) == {"jobs": 0, "tasks": 0}


def test_no_queue_event_is_written_while_the_disk_is_low() -> None:
    queue, mirror = QueueLength(), pending(4)
    mirror.disk_low = True
    assert reported(queue, mirror) is None

    mirror.disk_low = False

    assert reported(queue, mirror) == {"jobs": 1, "tasks": 4}


def test_the_queue_length_is_reported_again_after_a_reload() -> None:
    queue = QueueLength()
    assert reported(queue, pending(4)) is not None

    assert reported(queue, pending(4)) == {"jobs": 1, "tasks": 4}
