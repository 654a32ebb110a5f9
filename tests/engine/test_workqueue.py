"""WorkQueue: each key once, in the order it was woken, and again at its wake time."""

from hypothesis import given
from hypothesis import strategies as st

from rota.engine.workqueue import WorkItem, WorkQueue

A, B, C = WorkItem("jobs", "a"), WorkItem("jobs", "b"), WorkItem("nodes", "a")


def test_first_woken_first_served() -> None:
    queue = WorkQueue()
    for due in (B, A, C):
        queue.wake(due)

    assert drained(queue, 0) == [B, A, C]


def test_a_key_woken_twice_is_due_once() -> None:
    queue = WorkQueue()
    for due in (A, B, A):
        queue.wake(due)

    assert drained(queue, 0) == [A, B]


def test_a_key_woken_while_it_is_decided_is_due_again() -> None:
    queue = WorkQueue()
    queue.wake(A)
    first = queue.pop(0)
    queue.wake(A)

    assert (first, drained(queue, 0)) == (A, [A])


def test_one_key_of_two_reconcilers_is_two_items() -> None:
    queue = WorkQueue()
    queue.wake(A)
    queue.wake(C)

    assert drained(queue, 0) == [A, C]


def test_no_key_is_due_before_its_time() -> None:
    queue = WorkQueue()
    queue.wake_at(A, 100)

    assert not queue
    assert queue.next_at() == 100
    assert drained(queue, 99) == []
    assert drained(queue, 100) == [A]
    assert queue.next_at() is None


def test_the_earlier_of_two_wake_times_counts() -> None:
    for times in ((100, 50), (50, 100)):
        queue = WorkQueue()
        for at_ms in times:
            queue.wake_at(A, at_ms)

        assert queue.next_at() == 50
        assert drained(queue, 50) == [A]
        assert queue.next_at() is None
        assert drained(queue, 1000) == []


def test_a_wake_time_set_after_the_first_has_passed_counts() -> None:
    queue = WorkQueue()
    queue.wake_at(A, 50)
    queue.wake_at(A, 40)
    first = drained(queue, 45)
    queue.wake_at(A, 50)

    assert (first, drained(queue, 50), drained(queue, 1000)) == ([A], [A], [])


def test_an_empty_queue_is_falsy() -> None:
    queue = WorkQueue()
    before = bool(queue)
    queue.wake(A)

    assert (before, bool(queue), queue.next_at()) == (False, True, None)


dues = st.sampled_from([A, B, C])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("wake"), dues, st.just(0)),
        st.tuples(st.just("wake_at"), dues, st.integers(0, 30)),
        st.tuples(st.just("advance"), dues, st.integers(1, 10)),
        st.tuples(st.just("take"), dues, st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_the_queue_behaves_like_two_plain_tables(script: list[tuple[str, WorkItem, int]]) -> None:
    queue = WorkQueue()
    now: list[WorkItem] = []
    later: dict[WorkItem, int] = {}
    clock = 0
    for verb, due, number in script:
        if verb == "wake":
            queue.wake(due)
            now += [] if due in now else [due]
        elif verb == "wake_at":
            queue.wake_at(due, clock + number)
            later[due] = min(later.get(due, clock + number), clock + number)
        elif verb == "advance":
            clock += number
        else:
            for _, ripe in sorted((at_ms, ripe) for ripe, at_ms in later.items() if at_ms <= clock):
                del later[ripe]
                now += [] if ripe in now else [ripe]
            assert queue.pop(clock) == (now.pop(0) if now else None)
        assert queue.next_at() == min(later.values(), default=None)
        assert bool(queue) == bool(now)


def drained(queue: WorkQueue, now_ms: int) -> list[WorkItem]:
    found = []
    while (due := queue.pop(now_ms)) is not None:
        found.append(due)
    return found
