"""What a job needs, against what nodes have: none of it, too little in all, too little now, or scattered."""

from collections.abc import Callable, Iterator

import numpy as np

from rota.model.amounts import CPU, DISK, GPU, MEMORY, WHOLE_GPU
from rota.model.columns import Array
from rota.scheduler.filters import fits_devices
from rota.scheduler.sight import NO_HELP, Obstacle, Scene
from rota.scheduler.words import at_most, of_nodes, pair, plain

_ESSENTIAL = (CPU, MEMORY, DISK)  # every task needs some: to ask for none of it is no advice


def lacking(scene: Scene) -> Iterator[Obstacle]:
    """Nodes that have none of it, for ever too little, or too little now; what never called is not judged."""
    for resource, asked in scene.spec.shape.needs:
        if asked <= 0:
            continue
        capacity, free = _amounts(scene, resource)
        none = scene.called & (capacity == 0)
        small = scene.called & (capacity > 0) & (capacity < asked)
        short = scene.called & (capacity >= asked) & (free < asked)
        for on, amounts, words in (
            (none, capacity, "no"),
            (small, capacity, "in all"),
            (short, free, "free"),
        ):
            if on.any():
                text = _lack(resource, asked, on, int(amounts[on].max()), words)
                obstacle = scene.obstacle(resource, on, text, _short_of(resource, asked, amounts, words))
                cost, change = _asking_less(resource, asked, _attainable(scene, resource, asked, free))
                yield obstacle._replace(cost=cost, change=change, lasting=words != "free")


def _amounts(scene: Scene, resource: str) -> tuple[Array, Array]:
    """What each node has in all, and has free."""
    row = scene.board.row(resource)
    if row is None:
        nothing = np.zeros(scene.slots.size, np.int64)
        return nothing, nothing
    return scene.board.capacity[row, scene.slots], np.maximum(0, scene.board.free[row, scene.slots])


def _asking_less(resource: str, asked: int, attainable: Array) -> tuple[Array, Callable[[int], str]]:
    cost = (asked - attainable) / asked
    if resource in _ESSENTIAL:
        cost = np.where(attainable == 0, NO_HELP, cost)

    def change(at: int) -> str:
        left = int(attainable[at])
        return f"with {resource} <= {at_most(resource, left)}" if left else f"without {resource}"

    return cost, change


def _attainable(scene: Scene, resource: str, asked: int, free: Array) -> Array:
    """How much a task could have now: of GPUs whole ones, or a part of one."""
    if resource != GPU:
        return free
    devices = scene.board.devices[scene.slots]
    part = np.minimum(WHOLE_GPU, devices.max(axis=1, initial=0))
    whole = (devices == WHOLE_GPU).sum(axis=1) * WHOLE_GPU
    best = np.where(
        (whole == 0) | (asked < WHOLE_GPU), part, np.minimum(whole, free // WHOLE_GPU * WHOLE_GPU)
    )
    found: Array = np.minimum(best, free)
    return found


def _short_of(resource: str, asked: int, amounts: Array, words: str) -> Callable[[int], str]:
    def said(at: int) -> str:
        if words == "no":
            return f"no {resource}"
        there, wanted = pair(resource, int(amounts[at]), asked)
        return f"{there} {resource} {words}, asked {wanted}"

    return said


def _lack(resource: str, asked: int, on: Array, largest: int, words: str) -> str:
    count = int(np.count_nonzero(on))
    who = of_nodes(count, on.size, "has", "have")
    if words == "no":
        return f"no node has {resource}" if count == on.size else f"{who} no {resource}"
    there, wanted = pair(resource, largest, asked)
    if words == "free":
        return f"{who} too little free {resource}: largest free {there}, asked {wanted}"
    return f"{who} too little {resource} in all: largest {there}, asked {wanted}"


def scattered(scene: Scene) -> Iterator[Obstacle]:
    """Enough of GPUs in all, but not on one device, or not whole ones."""
    asked = scene.spec.needs.get(GPU, 0)
    if not asked:
        return
    capacity, free = _amounts(scene, GPU)
    devices = scene.board.devices[scene.slots]
    on = scene.called & (capacity >= asked) & (free >= asked) & ~fits_devices(devices, asked)
    count = int(np.count_nonzero(on))
    if not count:
        return
    best = _attainable(scene, GPU, asked, free)
    what = f"no device with {plain(GPU, asked)} free" if asked < WHOLE_GPU else "too few whole devices free"
    who = of_nodes(count, on.size, "has", "have")
    text = f"{who} {what}: largest {plain(GPU, int(best[on].max()))}, asked {plain(GPU, asked)}"
    cost, change = _asking_less(GPU, asked, best)
    yield scene.obstacle(GPU, on, text, what)._replace(cost=cost, change=change)
