"""Which nodes chaos harms, when and how: the same for the same seed, and never all of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from rota.devtools import chaos
from rota.devtools.chaos import ChaosAct, ChaosKind, ChaosState

NODES = ("node-1", "node-2", "node-3", "node-4", "node-5")
HOUR_MS = 3_600_000


def all_ready(names: Sequence[str] = NODES) -> Mapping[str, bool]:
    return dict.fromkeys(names, True)


def story(seed: int, nodes: Sequence[str] = NODES, pace: float = 1.0) -> list[tuple[int, str, ChaosAct]]:
    """One hour of chaos, in which every node is ready again as soon as it is healed."""
    plan, now_ms = chaos.start(seed, pace, 0), 0
    events: list[tuple[int, str, ChaosAct]] = []
    while now_ms < HOUR_MS:
        step = chaos.decide(plan, all_ready(nodes), now_ms)
        events += [(now_ms, "heal", act) for act in step.heal]
        if step.harm is not None:
            events.append((now_ms, "harm", step.harm))
        assert step.wake_at_ms > now_ms, "it never asks to be asked at once"
        plan, now_ms = step.after, step.wake_at_ms
    return events


def test_the_same_seed_gives_the_same_acts_and_another_one_others() -> None:
    assert story(1) == story(1)
    assert story(1) != story(2)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 3, 5])
def test_at_least_one_node_is_always_healthy(seed: int, count: int) -> None:
    harmed: list[str] = []
    for _, what, act in story(seed, NODES[:count]):
        if what == "harm":
            assert act.node not in harmed, "one thing at a time"
            harmed.append(act.node)
        else:
            harmed.remove(act.node)
        assert len(harmed) < count


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_comes_before_one_comes_twice(seed: int) -> None:
    kinds = [act.kind for _, what, act in story(seed) if what == "harm"]

    assert sorted(kinds[: len(ChaosKind)]) == sorted(ChaosKind)
    assert sorted(kinds[len(ChaosKind) : 2 * len(ChaosKind)]) == sorted(ChaosKind)


def test_every_node_has_its_share() -> None:
    shares = Counter(act.node for _, what, act in story(3) if what == "harm")

    assert shares.keys() == set(NODES)
    assert max(shares.values()) < 2 * min(shares.values())


def test_intervals_and_outages_follow_the_table_and_the_pace() -> None:
    for pace in (1.0, 0.2):
        harms = [(at_ms, act) for at_ms, what, act in story(4, pace=pace) if what == "harm"]
        pauses = [(later - at) / 1000 / pace for (at, _), (later, _) in pairwise(harms)]
        outages = [act.seconds / pace for _, act in harms]

        low, high = chaos.INTERVAL_SECONDS
        assert low - 0.01 <= min(pauses) <= max(pauses) <= high + 0.51
        low, high = chaos.OUTAGE_SECONDS
        assert low <= min(outages) < chaos.LOST_SECONDS < max(outages) <= high


def test_a_fault_is_healed_when_its_time_is_over() -> None:
    events = story(5)
    for at_ms, what, act in events:
        if what == "harm" and at_ms + 1000 * act.seconds < HOUR_MS:
            mended = next(
                later for later, then, healed in events if then == "heal" and healed == act and later > at_ms
            )
            assert mended == at_ms + round(1000 * act.seconds)


def test_a_node_that_is_not_ready_is_left_alone() -> None:
    plan = ChaosState(seed=6)
    ready = {**all_ready(), "node-2": False, "node-4": False}

    harmed = [chaos.decide(ChaosState(6, number=turn), ready, 0).harm for turn in range(50)]

    assert {act.node for act in harmed if act is not None} == {"node-1", "node-3", "node-5"}
    assert chaos.decide(plan, dict.fromkeys(NODES, False), 0).harm is None


def test_without_a_second_healthy_node_nothing_is_done_and_no_kind_is_skipped() -> None:
    ready = {**dict.fromkeys(NODES, False), "node-1": True}

    step = chaos.decide(ChaosState(seed=7, number=3), ready, 1000)

    assert step.harm is None
    assert step.after.number == 3
    assert step.wake_at_ms > 1000


def test_a_node_that_is_being_healed_gets_no_new_fault_immediately() -> None:
    first = chaos.decide(ChaosState(seed=8), all_ready(NODES[:2]), 0)
    assert first.harm is not None
    late_ms = max(first.after.next_at_ms, first.after.outages[0].until_ms)

    second = chaos.decide(first.after, all_ready(NODES[:2]), late_ms)

    assert second.heal == (first.harm,)
    assert second.harm is None


@pytest.mark.parametrize("kind", ChaosKind)
def test_every_action_and_its_end_is_one_sentence(kind: ChaosKind) -> None:
    act = ChaosAct(kind, "node-3", 12.34)

    assert chaos.describe_harm(act).startswith("node node-3: ")
    assert "12 s" in chaos.describe_harm(act)
    assert chaos.describe_healing(act).startswith("node node-3: ")
