"""Attempt blocks: a new number for each placement, the old one kept in a bounded list."""

from rota.model.ids import JobId
from rota.model.sync import Said
from rota.testing.builders import add_job, add_node, at, job_spec
from tests.scheduler.rounds import Rounds


def test_each_placement_has_a_new_number_and_the_old_one_is_kept() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 8000})
    add_job(rounds.mirror, job_spec(count=2, retries=5))
    rounds.go()
    rounds.said("a", 1, Said.EXITED, (1, 1), ms=100, exit_code=3)
    rounds.go(ms=5000)

    block = rounds.mirror.jobs[JobId("1")].attempts[0]
    assert [(old.position, old.number, old.node, old.placed_at_ms) for old in block.older] == [
        (1, 1, "a", at(0).wall_ms)
    ]
    assert block.number == bytes([1, 0, 0, 0, 2, 0, 0, 0])
    assert block.tries == bytes([0, 0, 1, 0])


def test_sixty_four_old_attempts_are_kept_and_more_are_counted() -> None:
    rounds = Rounds()
    add_node(rounds.mirror, "a", {"cpu": 1000})
    job = add_job(rounds.mirror, job_spec(retries=100))
    for number in range(1, 71):
        ms = number * 100_000
        rounds.go(ms=ms)
        rounds.said("a", 1, Said.EXITED, (0, number), ms=ms, exit_code=1)

    block = rounds.mirror.jobs[job].attempts[0]
    assert [old.number for old in block.older] == list(range(6, 70))
    assert block.older_dropped == 5
