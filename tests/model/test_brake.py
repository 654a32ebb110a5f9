"""How many nodes fell silent together decides whether their work is started elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.engine.state.mirror import Mirror
from rota.model.ids import NodeId
from rota.model.lifecycle import NodeState
from rota.model.limits import BRAKE_STEP_MS, BRAKE_WINDOW_MS
from rota.model.node import NodeIntent, NodeSpec, NodeStatus
from rota.rules.disruption import BrakeLevel, SilentNodes

LOST_MS = 30_000


def nodes(silent_at_ms: list[int | None], lost: tuple[int, ...] = ()) -> Mirror:
    """One node for each; None: it is there."""
    mirror = Mirror()
    for number, at_ms in enumerate(silent_at_ms):
        name = NodeId(f"n{number:04}")
        absent = NodeState.LOST if number in lost else NodeState.SUSPECT
        state = NodeState.READY if at_ms is None else absent
        mirror.apply(NodeSpec(name, name))
        mirror.apply(NodeStatus(name, state, "", "", "", {}, silent_at_ms=at_ms))
    return mirror


def level(silent: int, of: int) -> BrakeLevel:
    mirror = nodes([7] * silent + [None] * (of - silent))
    return SilentNodes(mirror).worst(mirror).level


@pytest.mark.parametrize(
    ("silent", "of", "expected"),
    [
        (5, 20, BrakeLevel.OFF),
        (6, 20, BrakeLevel.SLOWED),
        (9, 20, BrakeLevel.SLOWED),
        (10, 20, BrakeLevel.STOPPED),
        (20, 20, BrakeLevel.STOPPED),
        (2, 2, BrakeLevel.OFF),
        (2, 4, BrakeLevel.OFF),
        (3, 10, BrakeLevel.SLOWED),
        (3, 11, BrakeLevel.OFF),
        (3, 6, BrakeLevel.STOPPED),
        (2999, 10_000, BrakeLevel.OFF),
        (3000, 10_000, BrakeLevel.SLOWED),
    ],
)
def test_from_three_on_a_share_of_30_percent_slows_and_one_of_50_stops(
    silent: int, of: int, expected: BrakeLevel
) -> None:
    assert level(silent, of) is expected


def test_those_given_up_are_counted_with_those_who_fell_silent_with_them_and_not_later() -> None:
    mirror = nodes([0, 0, 0, None, None, None], lost=(0, 1))
    later = nodes([0, 0, BRAKE_WINDOW_MS + 1, None, None, None], lost=(0, 1))

    assert SilentNodes(mirror).worst(mirror).level is BrakeLevel.STOPPED
    assert SilentNodes(later).worst(later).level is BrakeLevel.OFF


def test_slowed_they_are_given_up_one_after_the_other_and_in_a_large_cluster_some_at_a_time() -> None:
    few = nodes([0, 100, 200, *[None] * 7])
    many = nodes([0] * 400 + [None] * 600)
    silence, at_once = SilentNodes(few), SilentNodes(many)

    assert [silence.lost_at_ms(few.nodes[NodeId(f"n000{at}")], LOST_MS) for at in range(3)] == [
        LOST_MS,
        LOST_MS + BRAKE_STEP_MS,
        LOST_MS + 2 * BRAKE_STEP_MS,
    ]
    times = [at_once.lost_at_ms(node, LOST_MS) for node in many.nodes.values() if node.status]
    assert max(time for time in times[:400] if time is not None) == LOST_MS + 39 * BRAKE_STEP_MS


def test_stopped_none_is_given_up_but_those_said_to_be_gone() -> None:
    mirror = nodes([5, 5, 5, None])
    mirror.apply(NodeIntent(NodeId("n0000"), gone_at_ms=5))
    mirror.apply(NodeIntent(NodeId("n0001"), gone_at_ms=6))
    silence = SilentNodes(mirror)

    assert [silence.lost_at_ms(mirror.nodes[NodeId(f"n000{at}")], LOST_MS) for at in range(3)] == [
        None,
        0,
        None,
    ]


def back(mirror: Mirror, number: int, silence: tuple[int, int]) -> None:
    name = NodeId(f"n{number:04}")
    mirror.apply(NodeStatus(name, NodeState.READY, "", "", "", {}, last_silence=silence))


def given_up_at(mirror: Mirror, number: int) -> int | None:
    return SilentNodes(mirror).lost_at_ms(mirror.nodes[NodeId(f"n{number:04}")], LOST_MS)


def test_the_last_who_return_have_their_grace_anew() -> None:
    """Ten nodes were silent for two minutes, and come back one by one."""
    mirror = nodes([1_000] * 10)
    assert given_up_at(mirror, 9) is None
    for number in range(7):
        back(mirror, number, (1_000, 120_000 + number))
    slowed = given_up_at(mirror, 9)
    for number in (7, 8):
        back(mirror, number, (1_000, 121_000))

    assert slowed == 120_006 + LOST_MS
    assert given_up_at(mirror, 9) == 121_000 + LOST_MS


def test_a_silence_of_few_or_of_another_time_delays_nobody() -> None:
    few = nodes([1_000, None, *[None] * 8])
    back(few, 1, (1_000, 20_000))
    other = nodes([500_000, *[None] * 9])
    for number in range(1, 8):
        back(other, number, (1_000, 120_000))

    assert given_up_at(few, 0) == 0
    assert given_up_at(other, 0) == 0


@given(
    st.lists(st.integers(0, 4 * BRAKE_WINDOW_MS), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 4 * BRAKE_WINDOW_MS), st.integers(0, 10**6)), max_size=8),
)
def test_those_who_returned_are_found_as_by_looking_at_each(
    silent_at_ms: list[int], over: list[tuple[int, int]]
) -> None:
    mirror = nodes([*silent_at_ms, *[None] * len(over)])
    for number, silence in enumerate(over):
        back(mirror, len(silent_at_ms) + number, silence)

    for number, here in enumerate(silent_at_ms):
        ends = [end for begun, end in over if abs(begun - here) <= BRAKE_WINDOW_MS]
        brake = SilentNodes(mirror).around(NodeId(f"n{number:04}"), here)
        together = brake.silent + len(ends)
        if brake.level is BrakeLevel.OFF:
            many = ends and together >= 3 and together * 100 >= brake.of * 30
            assert given_up_at(mirror, number) == (max(ends) + LOST_MS if many else 0)


@given(st.lists(st.none() | st.integers(0, 4 * BRAKE_WINDOW_MS), min_size=1, max_size=12))
def test_it_is_the_fullest_window_that_counts(silent_at_ms: list[int | None]) -> None:
    mirror = nodes(silent_at_ms)
    silence = SilentNodes(mirror)
    at_ms = [one for one in silent_at_ms if one is not None]

    for number, here in enumerate(silent_at_ms):
        if here is not None:
            windows = [start for start in at_ms if start <= here <= start + BRAKE_WINDOW_MS]
            most = max(sum(start <= one <= start + BRAKE_WINDOW_MS for one in at_ms) for start in windows)
            assert silence.around(NodeId(f"n{number:04}"), here).silent == most
