"""What happens to nodes and their tasks, in a few sentences."""

from msgspec.structs import replace

from rota.devtools.chaos_report import ChaosReport
from rota.model.ids import JobId, NodeId
from rota.model.plan import EventRecord

NAMES = {NodeId("1"): "node-1", NodeId("2"): "node-2"}
JOB = JobId("7")


def task(kind: str, node: str | None, state: str | None, *pairs: tuple[int, int]) -> EventRecord:
    return EventRecord(
        kind, "", job=JOB, node=None if node is None else NodeId(node), indices=pairs, state=state
    )


def lost(*pairs: tuple[int, int]) -> EventRecord:
    return task("task.ended", "1", "lost", *pairs)


def started(node: str, *pairs: tuple[int, int]) -> EventRecord:
    return task("task.started", node, "running", *pairs)


def test_the_fate_of_a_node_is_described_as_in_the_servers_events() -> None:
    event = EventRecord("node.lost", "node node-1 was lost: silent for 10 s", node=NodeId("1"), state="lost")

    assert ChaosReport().sentences([event], NAMES) == ["node node-1 was lost: silent for 10 s"]


def test_lost_tasks_are_counted_and_followed_to_their_next_node() -> None:
    effects = ChaosReport()

    assert effects.sentences([lost((0, 2), (5, 5))], NAMES) == ["4 tasks of job 7 lost with node-1"]
    assert effects.moved() == []
    effects.sentences([started("2", (0, 1))], NAMES)
    effects.sentences([started("2", (2, 2))], NAMES)
    assert effects.moved() == ["3 tasks of job 7 moved from node-1 to node-2"]
    effects.sentences([started("1", (5, 5))], NAMES)
    assert effects.moved() == ["1 task of job 7 restarted on node-1"]
    assert effects.moved() == []


def test_tasks_of_many_jobs_take_one_sentence() -> None:
    events = [replace(lost((0, 1)), job=JobId(str(number))) for number in range(5)]

    assert ChaosReport().sentences(events, NAMES) == ["10 tasks of 5 jobs lost with node-1"]


def test_an_offer_that_was_not_answered_is_followed_too() -> None:
    effects = ChaosReport()

    sentences = effects.sentences([task("task.ended", "1", "withdrawn", (3, 3))], NAMES)
    assert sentences == ["1 task of job 7 withdrawn from node-1"]
    effects.sentences([task("task.ended", "2", "succeeded", (3, 3))], NAMES)
    assert effects.moved() == ["1 task of job 7 moved from node-1 to node-2"]


def test_a_refused_attempt_has_not_arrived() -> None:
    effects = ChaosReport()
    effects.sentences([lost((3, 3))], NAMES)

    effects.sentences([task("task.ended", "2", "refused", (3, 3))], NAMES)
    assert effects.moved() == []
    effects.sentences([started("2", (3, 3))], NAMES)
    assert effects.moved() != []


def test_ordinary_events_are_not_reported() -> None:
    effects = ChaosReport()
    usual = [
        EventRecord("job.submitted", "", job=JOB),
        task("task.placed", None, None, (0, 9)),
        started("1", (0, 9)),
        task("task.ended", "1", "succeeded", (0, 9)),
        EventRecord("node.changed", "", node=NodeId("1")),
    ]

    assert effects.sentences(usual, NAMES) == []
    assert effects.moved() == []


def test_nothing_of_an_ended_job_is_remembered() -> None:
    effects = ChaosReport()
    effects.sentences([lost((0, 0))], NAMES)
    effects.sentences([EventRecord("job.ended", "", job=JOB)], NAMES)

    effects.sentences([started("2", (0, 0))], NAMES)
    assert effects.moved() == []


def test_tasks_of_a_deleted_node_are_reported_without_its_name() -> None:
    sentences = ChaosReport().sentences([lost((0, 0))], {})

    assert sentences == ["1 task of job 7 lost with a node that was deleted"]
