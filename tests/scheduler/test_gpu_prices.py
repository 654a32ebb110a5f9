"""The value of a free share of a device: dual prices of cutting devices into the requested sizes."""

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.scheduler.placement import gpu_prices
from rota.scheduler.placement.gpu_prices import DEVICE_MILLI, SIZES_MAX, part_values

# Not too small: the brute force below tries every cut.
MIXES = st.dictionaries(st.integers(180, 1000), st.integers(1, 50), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({500: 3}, {500: 500}),
        ({810: 7}, {810: 1000}),
        ({1000: 2}, {1000: 1000}),
        ({300: 1}, {300: 1000 / 3}),
        ({810: 10, 190: 1}, {810: 1000, 190: 0}),
        ({810: 1, 190: 10}, {810: 800, 190: 200}),
        ({600: 1, 400: 1, 500: 2}, {500: 500}),
    ],
)
def test_prices_that_can_be_worked_out_by_hand(asked: dict[int, int], expected: dict[int, float]) -> None:
    value = part_values(asked)

    assert {size: value[size] for size in expected} == pytest.approx(expected, abs=1e-6)


def test_without_demand_every_value_is_zero() -> None:
    assert not part_values({}).any()
    assert not part_values({500: 0}).any()


@given(MIXES)
@settings(max_examples=60, deadline=None)
def test_no_cut_of_a_device_is_worth_more_than_the_device(asked: dict[int, int]) -> None:
    value = part_values(asked)

    assert value[DEVICE_MILLI] == pytest.approx(DEVICE_MILLI)
    assert max(sum(value[size] for size in cut) for cut in cuts(asked)) <= DEVICE_MILLI + 1e-6


@given(MIXES)
@settings(max_examples=60, deadline=None)
def test_total_prices_equal_the_least_number_of_devices(asked: dict[int, int]) -> None:
    """Strong duality: the sum of all prices is the least number of devices, found by trying every basis."""
    value = part_values(asked)

    worth = sum(times * value[size] for size, times in asked.items())
    assert worth == pytest.approx(DEVICE_MILLI * fewest_devices(asked))


@given(MIXES)
@settings(max_examples=60, deadline=None)
def test_the_value_of_a_share_is_that_of_its_best_cut(asked: dict[int, int]) -> None:
    value = part_values(asked)

    assert (np.diff(value) >= 0).all()
    for width in (180, 333, 500, 999):
        best = max(sum(value[size] for size in cut) for cut in cuts(asked, width))
        assert value[width] == pytest.approx(best, abs=1e-6)


@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 10**6), min_size=1, max_size=60))
@settings(max_examples=20, deadline=None)
def test_splitting_a_share_never_increases_its_value(asked: dict[int, int]) -> None:
    value = part_values(asked)

    for part in (1, 190, 333, 500):
        assert (value[part:] - value[:-part] - value[part] >= -1e-6).all()


def test_of_very_many_sizes_the_most_demanded_are_priced() -> None:
    many = dict.fromkeys(range(901, 901 + SIZES_MAX), 1000)

    value = part_values(many | {400: 1})

    assert value[901] == pytest.approx(DEVICE_MILLI)
    assert value[400] == 0


def test_prices_are_admissible_even_if_the_rounds_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_prices, "ROUNDS_MAX", 1)
    asked = {810: 5, 190: 3, 470: 10, 320: 10, 210: 7}

    value = part_values(asked)

    assert value[DEVICE_MILLI] == pytest.approx(DEVICE_MILLI)
    assert max(sum(value[size] for size in cut) for cut in cuts(asked)) <= DEVICE_MILLI + 1e-6


def cuts(asked: dict[int, int], width: int = DEVICE_MILLI) -> Iterator[tuple[int, ...]]:
    """Every way to cut a share of this width."""
    for pieces in range(width // min(asked) + 1):
        for cut in combinations_with_replacement(sorted(asked), pieces):
            if sum(cut) <= width:
                yield cut


def fewest_devices(asked: dict[int, int]) -> float:
    sizes = sorted(asked)
    columns = np.array([[cut.count(size) for size in sizes] for cut in cuts(asked) if cut], float)
    bases = columns[list(combinations(range(len(columns)), len(sizes)))].transpose(0, 2, 1)
    bases = bases[abs(np.linalg.det(bases)) > 1e-9]
    wanted = np.array([[asked[size]] for size in sizes], float)
    used = np.linalg.solve(bases, np.broadcast_to(wanted, (len(bases), *wanted.shape)))[:, :, 0]
    return float(used[(used >= -1e-9).all(axis=1)].sum(axis=1).min())
