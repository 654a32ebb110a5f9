"""How often each share of a GPU is requested -> the value of every free share."""

from collections.abc import Mapping

import numpy as np

from rota.model.columns import Array

DEVICE_MILLI = 1000
# Sizes that get a price, the most requested ones: the others change prices little and cost much.
SIZES_MAX = 32
ROUNDS_MAX = 300  # some tens are usual; prices are admissible after any number of rounds
EPSILON = 1e-9


def part_values(asked: Mapping[int, int]) -> Array:
    """float64[1001]: the highest value that n free milli of one device can still be filled with.

    Cutting devices into the sizes that are asked for, with as few devices as possible, is a linear program;
    the price of a size is its dual, so that a device is worth 1000 and no cut of it more. The table holds the
    prices too, at the sizes themselves: a size that could be filled with more would have had a higher price.
    """
    by_demand = sorted(asked, key=lambda size: (-size * asked[size], size))
    priced = sorted(size for size in by_demand[:SIZES_MAX] if asked[size] > 0)
    if not priced:
        return np.zeros(DEVICE_MILLI + 1)
    sizes = np.array(priced)
    table = _knapsack(sizes, _prices(sizes, np.array([float(asked[size]) for size in priced])))
    # Should the rounds have run out, this makes the prices admissible again (Farley's bound).
    scaled: Array = table * (DEVICE_MILLI / table[-1])
    return scaled


def _prices(sizes: Array, asked: Array) -> Array:
    """Gilmore and Gomory's column generation: a cut worth more than a device replaces one that is in use."""
    cuts = np.diag(DEVICE_MILLI // sizes).astype(float)
    prices = np.linalg.solve(cuts.T, np.ones(sizes.size))
    for _ in range(ROUNDS_MAX):
        table = _knapsack(sizes, prices)
        if table[-1] <= 1 + EPSILON:
            break
        better = _best_cut(sizes, prices, table)
        used, swapped = np.linalg.solve(cuts, np.column_stack((asked, better))).T
        most = np.full(sizes.size, np.inf)
        np.divide(used, swapped, out=most, where=swapped > EPSILON)
        cuts[:, np.argmin(most)] = better
        prices = np.linalg.solve(cuts.T, np.ones(sizes.size))
    return prices


def _knapsack(sizes: Array, prices: Array) -> Array:
    """The knapsack of every width up to a device: 1, 2, 4, ... of a size at once make up any number of it."""
    table = np.zeros(DEVICE_MILLI + 1)
    for size, price in zip(sizes.tolist(), prices.tolist(), strict=True):
        width, worth = size, price
        while width <= DEVICE_MILLI and worth > 0:
            np.maximum(table[width:], table[:-width] + worth, out=table[width:])
            width, worth = 2 * width, 2 * worth
    return table


def _best_cut(sizes: Array, prices: Array, table: Array) -> Array:
    cut = np.zeros(sizes.size)
    places = np.flatnonzero(prices > EPSILON)
    left = DEVICE_MILLI
    while True:
        places = places[sizes[places] <= left]
        if places.size == 0:
            return cut
        best = places[np.argmax(table[left - sizes[places]] + prices[places])]
        cut[best] += 1
        left -= int(sizes[best])
