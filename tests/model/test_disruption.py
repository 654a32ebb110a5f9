"""The brake: how many nodes fell silent together decides how fast they are declared lost."""

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
    """One node for each time of its last message; None: it is not silent."""
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
def test_from_three_nodes_on_30_percent_silent_slows_and_50_percent_stops(
    silent: int, of: int, expected: BrakeLevel
) -> None:
    assert level(silent, of) is expected


def test_lost_nodes_count_with_nodes_that_fell_silent_at_the_same_time_only() -> None:
    mirror = nodes([0, 0, 0, None, None, None], lost=(0, 1))
    later = nodes([0, 0, BRAKE_WINDOW_MS + 1, None, None, None], lost=(0, 1))

    assert SilentNodes(mirror).worst(mirror).level is BrakeLevel.STOPPED
    assert SilentNodes(later).worst(later).level is BrakeLevel.OFF


def test_a_slowed_brake_declares_nodes_lost_one_by_one_or_a_few_at_a_time() -> None:
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


def test_a_stopped_brake_declares_only_confirmed_nodes_lost() -> None:
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


def test_nodes_still_silent_when_the_brake_ends_get_a_new_grace_period() -> None:
    """Ten nodes were silent for two minutes, and return one by one."""
    mirror = nodes([1_000] * 10)
    assert given_up_at(mirror, 9) is None
    for number in range(7):
        back(mirror, number, (1_000, 120_000 + number))
    slowed = given_up_at(mirror, 9)
    for number in (7, 8):
        back(mirror, number, (1_000, 121_000))

    assert slowed == 120_006 + LOST_MS
    assert given_up_at(mirror, 9) == 121_000 + LOST_MS


def test_few_silent_nodes_or_those_of_another_time_are_not_delayed() -> None:
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
def test_returned_nodes_are_found_as_by_a_full_scan(
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
def test_the_window_with_the_most_silent_nodes_counts(silent_at_ms: list[int | None]) -> None:
    mirror = nodes(silent_at_ms)
    silence = SilentNodes(mirror)
    at_ms = [moment for moment in silent_at_ms if moment is not None]

    for number, here in enumerate(silent_at_ms):
        if here is not None:
            windows = [start for start in at_ms if start <= here <= start + BRAKE_WINDOW_MS]
            most = max(
                sum(start <= moment <= start + BRAKE_WINDOW_MS for moment in at_ms) for start in windows
            )
            assert silence.around(NodeId(f"n{number:04}"), here).silent == most
