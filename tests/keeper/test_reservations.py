"""Reservations: which attempt starts next."""

from hypothesis import given
from hypothesis import strategies as st

from rota.keeper.resources.reservations import AttemptKey, Grant, Refusal, Reservations, ResourceRequest

CPU = ResourceRequest((("cpu", 1000),))


def key(index: int) -> AttemptKey:
    return ("1", index, 1)


def reservations(gpus: tuple[str, ...] = (), **amounts: int) -> Reservations:
    reservations = Reservations()
    reservations.configure(amounts, gpus)
    return reservations


def granted(reservations: Reservations) -> list[int]:
    found = []
    while grant := reservations.admit_next():
        assert isinstance(grant, Grant)
        found.append(grant.key[1])
    return found


def test_attempts_start_in_order_of_arrival_while_they_fit() -> None:
    node = reservations(cpu=2000)
    for index in (3, 1, 2):
        node.enqueue(key(index), CPU, firm=True)

    assert granted(node) == [3, 1]
    node.release(key(3))
    assert granted(node) == [2]


def test_firm_goes_before_lookahead() -> None:
    node = reservations(cpu=2000)
    node.enqueue(key(0), CPU, firm=False)
    node.enqueue(key(1), CPU, firm=True)

    assert granted(node) == [1, 0]


def test_lookahead_does_not_pass_a_queued_firm_attempt() -> None:
    node = reservations(cpu=2000)
    node.enqueue(key(0), CPU, firm=False)
    node.admit_next()
    node.enqueue(key(1), ResourceRequest((("cpu", 2000),)), firm=True)
    node.enqueue(key(2), CPU, firm=False)

    assert granted(node) == []
    node.release(key(0))
    assert granted(node) == [1]


def test_a_queued_attempt_offered_again_as_firm_moves_up() -> None:
    node = reservations(cpu=1000)
    node.enqueue(key(0), CPU, firm=False)
    node.enqueue(key(1), CPU, firm=False)
    node.enqueue(key(1), CPU, firm=True)

    assert granted(node) == [1]
    assert node.waiting_keys() == [key(0)]


def test_nothing_starts_before_the_node_is_configured() -> None:
    node = Reservations()
    node.enqueue(key(0), CPU, firm=True)

    assert node.admit_next() is None
    node.configure({"cpu": 1000}, [])
    assert node.admit_next() == Grant(key(0), ())


def test_an_attempt_larger_than_the_node_is_refused() -> None:
    node = reservations(cpu=4000)

    assert (
        node.enqueue(key(0), ResourceRequest((("cpu", 4001),)), firm=True)
        == "needs 4001 of cpu, this node has 4000"
    )
    assert (
        node.enqueue(key(1), ResourceRequest((("licence", 1),)), firm=True)
        == "needs 1 of licence, this node has 0"
    )
    assert node.waiting_keys() == []


def test_a_smaller_node_refuses_queued_attempts_that_no_longer_fit() -> None:
    node = Reservations()
    node.enqueue(key(0), ResourceRequest((("cpu", 3000),)), firm=True)

    assert node.configure({"cpu": 2000}, []) == [Refusal(key(0), "needs 3000 of cpu, this node has 2000")]


def test_a_withdrawn_attempt_never_starts() -> None:
    node = reservations(cpu=1000)
    node.enqueue(key(0), CPU, firm=False)

    assert node.withdraw(key(0))
    assert not node.withdraw(key(0))
    assert node.admit_next() is None


needs = st.fixed_dictionaries({"cpu": st.integers(1, 5), "gpu": st.sampled_from([0, 1000, 2000, 3000])})
steps = st.one_of(
    st.tuples(st.just("offer"), needs, st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("withdraw"), st.integers(0, 20)),
)


@given(st.lists(steps, max_size=60))
def test_no_order_of_events_overbooks_or_starves(story: list[tuple[object, ...]]) -> None:
    node = reservations(("a", "b", "c"), cpu=6, gpu=3000)
    firm: list[int] = []
    lookahead: list[int] = []
    running: dict[int, Grant] = {}

    def fill() -> None:
        while grant := node.admit_next():
            assert isinstance(grant, Grant)
            line = firm or lookahead
            assert grant.key[1] == line.pop(0)
            running[grant.key[1]] = grant
        reserved = node.reserved()
        assert reserved.get("cpu", 0) <= 6
        assert reserved.get("gpu", 0) <= 3000
        devices = [gpu for grant in running.values() for gpu in grant.gpus]
        assert len(devices) == len(set(devices))

    for number, step in enumerate(story):
        match step:
            case ("offer", dict(request), bool(is_firm)):
                pairs = tuple((name, amount) for name, amount in request.items() if amount)
                assert node.enqueue(key(number), ResourceRequest(pairs), firm=is_firm) is None
                (firm if is_firm else lookahead).append(number)
            case ("end", int(choice)) if running:
                ended = sorted(running)[choice % len(running)]
                del running[ended]
                node.release(key(ended))
            case ("withdraw", int(choice)):
                waits = choice in firm or choice in lookahead
                assert node.withdraw(key(choice)) == waits
                firm, lookahead = [i for i in firm if i != choice], [i for i in lookahead if i != choice]
            case _:
                pass  # an end while nothing runs
        fill()
    while running:
        ended, _ = running.popitem()
        node.release(key(ended))
        fill()
    assert not firm
    assert not lookahead
