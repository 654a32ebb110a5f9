"""GPU allocation by the thousandth: which attempts get which devices, wait or are refused."""

from hypothesis import given
from hypothesis import strategies as st

from rota.keeper.resources.reservations import AttemptKey, Grant, Refusal, Reservations, ResourceRequest

NAMES = ("a", "b", "c")


def key(index: int) -> AttemptKey:
    return ("1", index, 1)


def gpu(amount: int, mask: int = 0) -> ResourceRequest:
    return ResourceRequest((("gpu", amount),), mask)


def reservations() -> Reservations:
    reservations = Reservations()
    reservations.configure({"gpu": 3000}, NAMES)
    return reservations


def admit(reservations: Reservations, index: int, ask: ResourceRequest) -> tuple[str, ...] | str | None:
    """The devices of an attempt, the reason of its refusal, or None: it waits."""
    if reason := reservations.enqueue(key(index), ask, firm=True):
        return reason
    match reservations.admit_next():
        case Grant(gpus=gpus):
            return gpus
        case Refusal(reason=reason):
            return reason
        case None:
            return None


def test_parts_share_the_device_they_were_given() -> None:
    node = reservations()

    assert admit(node, 0, gpu(500, 0b010)) == ("b",)
    assert admit(node, 1, gpu(300, 0b010)) == ("b",)
    assert admit(node, 2, gpu(200, 0b010)) == ("b",)


def test_a_part_that_would_exceed_its_device_is_refused() -> None:
    node = reservations()
    admit(node, 0, gpu(500, 0b010))

    assert admit(node, 1, gpu(501, 0b010)) == "GPU b has 0.5 free, asked 0.501"
    assert not node.has_waiting()
    assert admit(node, 2, gpu(501, 0b100)) == ("c",)


def test_whole_devices_are_those_that_were_given() -> None:
    node = reservations()

    assert admit(node, 0, gpu(2000, 0b101)) == ("a", "c")
    assert admit(node, 1, gpu(1000, 0b010)) == ("b",)


def test_a_whole_device_that_is_partly_allocated_is_refused() -> None:
    node = reservations()
    admit(node, 0, gpu(1, 0b100))

    assert admit(node, 1, gpu(2000, 0b110)) == "GPU c has 0.999 free, asked 1"
    assert admit(node, 2, gpu(2000, 0b011)) == ("a", "b")


def test_of_two_orders_at_once_for_one_device_the_second_is_refused() -> None:
    node = reservations()
    node.enqueue(key(0), gpu(600, 0b1), firm=True)
    node.enqueue(key(1), gpu(600, 0b1), firm=True)
    node.enqueue(key(2), gpu(400, 0b1), firm=True)

    assert node.admit_next() == Grant(key(0), ("a",))
    assert node.admit_next() == Refusal(key(1), "GPU a has 0.4 free, asked 0.6")
    assert node.admit_next() == Grant(key(2), ("a",))


def test_an_ended_attempt_releases_exactly_what_it_had() -> None:
    node = reservations()
    admit(node, 0, gpu(600, 0b1))
    admit(node, 1, gpu(400, 0b1))
    node.release(key(0))

    assert admit(node, 2, gpu(601, 0b1)) == "GPU a has 0.6 free, asked 0.601"
    assert admit(node, 3, gpu(600, 0b1)) == ("a",)
    node.release(key(1))
    node.release(key(3))
    assert admit(node, 4, gpu(1000, 0b1)) == ("a",)


def test_a_request_without_a_mask_gets_unused_whole_devices() -> None:
    node = reservations()
    admit(node, 0, gpu(100, 0b1))

    assert admit(node, 1, gpu(2000)) == ("b", "c")
    assert admit(node, 2, gpu(100, 0b10)) == "GPU b has 0 free, asked 0.1"


def test_a_fraction_without_a_mask_gets_a_whole_device() -> None:
    node = reservations()
    admit(node, 0, gpu(500))

    assert admit(node, 1, gpu(500, 0b1)) == "GPU a has 0 free, asked 0.5"
    node.release(key(0))
    assert admit(node, 2, gpu(1000, 0b1)) == ("a",)


def test_a_request_without_a_mask_waits_until_enough_devices_are_free() -> None:
    node = reservations()
    admit(node, 0, gpu(100, 0b1))

    assert admit(node, 1, gpu(3000)) is None
    assert node.admit_next() is None
    node.release(key(0))
    assert node.admit_next() == Grant(key(1), ("a", "b", "c"))


def test_an_attempt_that_waits_for_cores_is_not_refused_for_its_devices() -> None:
    node = Reservations()
    node.configure({"cpu": 1000, "gpu": 1000}, ["a"])
    both = ResourceRequest((("cpu", 1000), ("gpu", 600)), 0b1)
    node.enqueue(key(0), both, firm=True)
    node.admit_next()

    assert admit(node, 1, both) is None
    node.release(key(0))
    assert node.admit_next() == Grant(key(1), ("a",))


def test_unknown_devices_and_wrong_numbers_of_them_are_refused() -> None:
    node = reservations()

    assert admit(node, 0, gpu(500, 0b1000)) == "was given GPU 3, this node has 3 of them"
    assert admit(node, 1, gpu(2000, 0b1)) == "needs 2 of gpu, was given 1 devices"
    assert admit(node, 2, gpu(500, 0b11)) == "needs 0.5 of gpu, was given 2 devices"
    assert admit(node, 3, gpu(4000)) == "needs 4 of gpu, this node has 3"


def test_a_mask_for_an_attempt_without_gpu_needs_is_ignored() -> None:
    node = reservations()

    assert admit(node, 0, ResourceRequest((), 0b1)) == ()
    assert admit(node, 1, gpu(1000, 0b1)) == ("a",)


def test_a_reconnecting_agent_changes_no_reservations() -> None:
    node = reservations()
    admit(node, 0, gpu(700, 0b1))
    admit(node, 1, gpu(1000))
    node.configure({"gpu": 3000}, NAMES)

    assert admit(node, 2, gpu(400, 0b1)) == "GPU a has 0.3 free, asked 0.4"
    assert admit(node, 3, gpu(300, 0b1)) == ("a",)
    assert admit(node, 4, gpu(1000, 0b10)) == "GPU b has 0 free, asked 1"


def test_a_device_that_is_removed_and_added_again_is_still_allocated() -> None:
    node = reservations()
    admit(node, 0, gpu(700, 0b100))
    node.configure({"gpu": 2000}, NAMES[:2])

    assert admit(node, 1, gpu(100, 0b100)) == "was given GPU 2, this node has 2 of them"
    node.configure({"gpu": 3000}, NAMES)
    assert admit(node, 2, gpu(400, 0b100)) == "GPU c has 0.3 free, asked 0.4"
    node.release(key(0))
    assert admit(node, 3, gpu(400, 0b100)) == ("c",)


def test_an_attempt_that_waits_for_a_removed_device_is_refused() -> None:
    node = Reservations()
    node.enqueue(key(0), gpu(500, 0b10), firm=True)

    assert node.configure({"gpu": 1000}, ["a"]) == [
        Refusal(key(0), "was given GPU 1, this node has 1 of them")
    ]


asks = st.one_of(
    st.builds(gpu, st.integers(1, 999), st.sampled_from([0, 0b1, 0b10, 0b100])),
    st.builds(lambda mask: gpu(1000 * mask.bit_count(), mask), st.integers(1, 7)),
    st.builds(gpu, st.sampled_from([1000, 2000, 3000])),
)
steps = st.one_of(
    st.tuples(st.just("start"), asks),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("attach"), st.integers(0, 3)),
)


class Holders:
    """Allocations as computed from the grants alone."""

    def __init__(self, node: Reservations) -> None:
        self.node = node
        self.asked: dict[AttemptKey, ResourceRequest] = {}
        self.running: dict[AttemptKey, tuple[str, ...]] = {}

    def look(self) -> None:
        while turn := self.node.admit_next():
            if isinstance(turn, Grant):
                self.running[turn.key] = turn.gpus
        assert all(self.taken(name) <= 1000 for name in NAMES)

    def taken(self, name: str) -> int:
        holders = [self.asked[holder] for holder, gpus in self.running.items() if name in gpus]
        return sum(1000 if ask.mask == 0 else min(1000, ask.needs[0][1]) for ask in holders)

    def end(self, choice: int) -> None:
        ended = sorted(self.running)[choice % len(self.running)]
        del self.running[ended]
        self.node.release(ended)


@given(st.lists(steps, max_size=60))
def test_no_device_is_allocated_twice_and_all_are_released(story: list[tuple[str, object]]) -> None:
    node = reservations()
    holders = Holders(node)
    for number, step in enumerate(story):
        match step:
            case ("start", ResourceRequest() as ask):
                holders.asked[key(number)] = ask
                node.enqueue(key(number), ask, firm=True)
            case ("end", int(choice)) if holders.running:
                holders.end(choice)
            case ("attach", int(count)):
                node.configure({"gpu": count * 1000}, NAMES[:count])
            case _:
                pass  # an end while nothing runs
        holders.look()
    while holders.running:
        holders.end(0)
        holders.look()
    node.configure({"gpu": 3000}, NAMES)

    assert not node.has_waiting()
    assert admit(node, len(story), gpu(3000)) == NAMES
