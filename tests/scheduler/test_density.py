"""The density policy: where a request fits, and which node and device it fragments least."""

from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.scheduler.placement.density import TYPICAL_MAX, GpuDemand, GpuNodes, GpuRequest, fragmentation, rank

MODELS = ("T4", "V100")
GIB = 2**30


class One(NamedTuple):
    """A node in plain numbers, for the slow definitions below."""

    cpu: int
    memory: int
    devices: tuple[int, ...]
    model: str | None = None

    def can_run(self, ask: GpuRequest) -> bool:
        if ask.cpu_milli > self.cpu or ask.memory > self.memory:
            return False
        if ask.models and self.model not in ask.models:
            return False
        if ask.gpu_milli < 1000:
            return ask.gpu_milli == 0 or any(free >= ask.gpu_milli for free in self.devices)
        return self.devices.count(1000) >= ask.gpu_milli // 1000

    def fragmented(self, mix: dict[GpuRequest, int]) -> float:
        lost = 0
        for ask, times in mix.items():
            usable = ask.gpu_milli > 0 and self.can_run(ask)
            useless = [free for free in self.devices if not usable or free < min(ask.gpu_milli, 1000)]
            lost += times * sum(useless)
        return lost / sum(mix.values())

    def with_task(self, ask: GpuRequest, device: int) -> "One":
        devices = list(self.devices)
        if device >= 0:
            devices[device] -= ask.gpu_milli
        for _ in range(ask.gpu_milli // 1000):
            devices[devices.index(1000)] = 0
        return self._replace(
            cpu=self.cpu - ask.cpu_milli, memory=self.memory - ask.memory, devices=tuple(devices)
        )


GPU = st.sampled_from([0, 1, 190, 250, 500, 810, 999, 1000, 2000, 3000])
ASKS = st.builds(
    GpuRequest,
    st.sampled_from([0, 1000, 4000, 9000]),
    st.sampled_from([0, GIB, 5 * GIB]),
    GPU,
    st.sampled_from([(), (), ("T4",), ("V100", "T4"), ("other",)]),
)
MIXES = st.dictionaries(ASKS, st.integers(1, 100), min_size=1, max_size=6)
NODES = st.lists(
    st.builds(
        One,
        st.sampled_from([-500, 0, 3000, 4000, 9000, 13_000]),
        st.sampled_from([0, GIB, 5 * GIB, 9 * GIB]),
        st.lists(st.sampled_from([0, 60, 190, 250, 500, 810, 1000]), min_size=1, max_size=4).map(tuple),
        st.sampled_from([None, *MODELS]),
    ),
    min_size=1,
    max_size=5,
)


@given(MIXES, NODES)
@settings(max_examples=60, deadline=None)
def test_fragmentation_is_what_the_mix_cannot_use(mix: dict[GpuRequest, int], nodes: list[One]) -> None:
    found = fragmentation(GpuDemand.from_arrivals(mix), columns(nodes))

    assert found.tolist() == pytest.approx([node.fragmented(mix) for node in nodes])


@given(MIXES, ASKS, NODES)
@settings(max_examples=60, deadline=None)
def test_a_request_is_placed_only_where_it_fits(
    mix: dict[GpuRequest, int], ask: GpuRequest, nodes: list[One]
) -> None:
    ranked = rank(GpuDemand.from_arrivals(mix), ask, columns(nodes))

    assert (ranked.score > -np.inf).tolist() == [node.can_run(ask) for node in nodes]
    for node, score, device in zip(nodes, ranked.score, ranked.device, strict=True):
        if ask.is_share and score > -np.inf:
            assert node.devices[device] >= ask.gpu_milli
        else:
            assert device == -1


@given(MIXES, ASKS, NODES)
@settings(max_examples=60, deadline=None)
def test_the_score_is_its_definition_on_the_best_device(
    mix: dict[GpuRequest, int], ask: GpuRequest, nodes: list[One]
) -> None:
    demand = GpuDemand.from_arrivals(mix)

    ranked = rank(demand, ask, columns(nodes))

    for node, score, device in zip(nodes, ranked.score, ranked.device, strict=True):
        if node.can_run(ask):
            choices = range(len(node.devices)) if ask.is_share else [-1]
            fitting = [place for place in choices if place < 0 or node.devices[place] >= ask.gpu_milli]
            by_place = {place: slow_score(demand, mix, ask, node, place) for place in fitting}
            assert score == pytest.approx(max(by_place.values()), abs=0.01)
            assert by_place[device] == pytest.approx(score, abs=0.01)


@given(MIXES, ASKS, NODES, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_score_depends_on_its_node_alone(
    mix: dict[GpuRequest, int], ask: GpuRequest, nodes: list[One], chance: Random
) -> None:
    demand = GpuDemand.from_arrivals(mix)
    order = list(range(len(nodes)))
    chance.shuffle(order)

    together = rank(demand, ask, columns(nodes))
    shuffled = rank(demand, ask, columns([nodes[place] for place in order], width=6))
    alone = [rank(demand, ask, columns([node])) for node in nodes]

    assert together.score[order].tolist() == shuffled.score.tolist()
    assert together.device[order].tolist() == shuffled.device.tolist()
    assert together.score.tolist() == [ranked.score[0] for ranked in alone]
    assert together.device.tolist() == [ranked.device[0] for ranked in alone]


@given(st.lists(ASKS, min_size=1, max_size=60), NODES)
@settings(max_examples=60, deadline=None)
def test_no_device_is_ever_given_out_twice(arrivals: list[GpuRequest], nodes: list[One]) -> None:
    demand = GpuDemand.from_arrivals(dict.fromkeys(arrivals, 1))
    for ask in arrivals:
        ranked = rank(demand, ask, columns(nodes))
        best = int(ranked.score.argmax())
        if ranked.score[best] > -np.inf:
            nodes = [*nodes]
            nodes[best] = nodes[best].with_task(ask, int(ranked.device[best]))
            assert min(nodes[best].cpu, nodes[best].memory, *nodes[best].devices) >= 0


def test_a_request_leaves_the_share_that_others_can_use() -> None:
    demand = GpuDemand.from_arrivals({GpuRequest(1000, GIB, 500): 10, GpuRequest(1000, GIB, 1000): 10})

    ranked = rank(demand, GpuRequest(1000, GIB, 500), columns([One(64_000, 64 * GIB, (1000, 500, 900))]))

    assert ranked.device.tolist() == [1]


def test_a_rare_small_request_goes_where_frequent_ones_leave_a_gap() -> None:
    """800 is two of 400, and 1000 is two and this one."""
    demand = GpuDemand.from_arrivals({GpuRequest(0, 0, 400): 10, GpuRequest(0, 0, 200): 1})

    ranked = rank(demand, GpuRequest(0, 0, 200), columns([One(0, 0, (800, 1000))]))

    assert ranked.device.tolist() == [1]


def test_of_equal_nodes_the_fuller_is_chosen() -> None:
    demand = GpuDemand.from_arrivals({GpuRequest(1000, GIB, 1000): 1})
    nodes = [One(64_000, 64 * GIB, (1000, 1000)), One(32_000, 64 * GIB, (1000, 0))]

    ranked = rank(demand, GpuRequest(1000, GIB, 1000), columns(nodes))

    assert ranked.score.argmax() == 1


def test_a_task_without_a_gpu_keeps_away_from_cores_that_gpus_need() -> None:
    demand = GpuDemand.from_arrivals({GpuRequest(8000, GIB, 1000): 1, GpuRequest(4000, GIB, 0): 1})
    nodes = [One(8000, 64 * GIB, (1000,)), One(8000, 64 * GIB, (0,))]

    ranked = rank(demand, GpuRequest(4000, GIB, 0), columns(nodes))

    assert ranked.score.argmax() == 1
    assert ranked.device.tolist() == [-1, -1]


def test_equal_nodes_are_a_tie() -> None:
    demand = GpuDemand.from_arrivals(
        {GpuRequest(1000, GIB, size): size for size in (110, 230, 320, 470, 650, 810)}
    )

    ranked = rank(demand, GpuRequest(1000, GIB, 320), columns([One(64_000, 64 * GIB, (530, 1000, 320))] * 3))

    assert len(set(ranked.score.tolist())) == 1
    assert ranked.device.tolist() == [2, 2, 2]


@pytest.mark.parametrize("size", [110, 140, 150, 300, 330])
def test_the_noise_of_prices_does_not_break_a_tie(size: int) -> None:
    """A third, or a seventh, of a device has no exact price."""
    demand = GpuDemand.from_arrivals({GpuRequest(0, 0, size): 1})
    devices = tuple(size * times for times in range(2, 1000 // size + 1))

    for order in (devices, devices[::-1]):
        ranked = rank(demand, GpuRequest(0, 0, size), columns([One(0, 0, order)], width=9))

        assert ranked.device.tolist() == [0]


def test_without_demand_the_fullest_node_is_chosen() -> None:
    nodes = [One(9000, 9 * GIB, (1000,)), One(4000, 9 * GIB, (400,)), One(3000, 9 * GIB, (100,))]

    ranked = rank(GpuDemand.from_arrivals({}), GpuRequest(1000, GIB, 300), columns(nodes))

    assert ranked.score.argmax() == 1


def test_no_nodes_have_no_scores() -> None:
    nothing = np.zeros(0, np.int64)
    nodes = GpuNodes(nothing, nothing, np.zeros((0, 8), np.int64), nothing, MODELS)

    ranked = rank(GpuDemand.from_arrivals({GpuRequest(1, 1, 500): 1}), GpuRequest(1, 1, 500), nodes)

    assert ranked.score.size == ranked.device.size == 0


def test_of_very_many_requests_the_most_frequent_are_typical() -> None:
    rare = {GpuRequest(cpu, 0, 500): 1 for cpu in range(2 * TYPICAL_MAX)}

    demand = GpuDemand.from_arrivals(rare | {GpuRequest(10**6, 0, 500): 1000})

    assert len(demand.times) == TYPICAL_MAX
    assert demand.arrivals == 1000 + TYPICAL_MAX - 1


def columns(nodes: list[One], width: int = 4) -> GpuNodes:
    devices = np.zeros((len(nodes), width), np.int64)
    for place, node in enumerate(nodes):
        devices[place, : len(node.devices)] = node.devices
    cpu = np.array([node.cpu for node in nodes], np.int64)
    return GpuNodes(
        cpu_free=cpu,
        memory_free=np.array([node.memory for node in nodes], np.int64),
        devices=devices,
        model=np.array([MODELS.index(node.model) if node.model else -1 for node in nodes], np.int64),
        models=MODELS,
    )


def slow_score(
    demand: GpuDemand, mix: dict[GpuRequest, int], ask: GpuRequest, node: One, device: int
) -> float:
    after = node.with_task(ask, device)
    left = 0.7 * after.cpu / 128_000 + 0.3 * sum(after.devices) / 8_000
    gap = 0.0
    if ask.is_share:
        value = demand.value
        gap = value[node.devices[device]] - value[after.devices[device]] - value[ask.gpu_milli]
    return node.fragmented(mix) - after.fragmented(mix) - 40 * left - 4 * gap
