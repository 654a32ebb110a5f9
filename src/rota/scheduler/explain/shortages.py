"""Resource shortages of nodes: none at all, too little capacity, too little free, or fragmented GPUs."""

from collections.abc import Callable, Iterator

import numpy as np

from rota.model.amounts import CPU, DISK, GPU, MEMORY, WHOLE_GPU
from rota.model.columns import Array
from rota.scheduler.explain.feasibility import NO_REMEDY, FeasibilityInput, Obstacle
from rota.scheduler.explain.phrases import (
    count_of_nodes,
    format_amount,
    format_amount_rounded_down,
    format_amounts_apart,
)
from rota.scheduler.placement.filters import fits_gpus

_ESSENTIAL = (CPU, MEMORY, DISK)  # every task needs some: advice to request none would not help


def resource_shortages(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    """Nodes without the resource, with too little capacity, or with too little free.

    Unreported nodes are skipped.
    """
    for resource, asked in inputs.spec.shape.needs:
        if asked <= 0:
            continue
        capacity, free = _amounts(inputs, resource)
        none = inputs.has_reported & (capacity == 0)
        small = inputs.has_reported & (capacity > 0) & (capacity < asked)
        short = inputs.has_reported & (capacity >= asked) & (free < asked)
        for on, amounts, kind in (
            (none, capacity, "no"),
            (small, capacity, "in all"),
            (short, free, "free"),
        ):
            if on.any():
                text = _describe_shortage(resource, asked, on, int(amounts[on].max()), kind)
                obstacle = inputs.make_obstacle(
                    resource, on, text, _describe_on_node(resource, asked, amounts, kind)
                )
                cost, change = _smaller_request(resource, asked, _attainable(inputs, resource, asked, free))
                yield obstacle._replace(cost=cost, change=change, lasting=kind != "free")


def _amounts(inputs: FeasibilityInput, resource: str) -> tuple[Array, Array]:
    """Capacity and free amount of each node."""
    row = inputs.board.row(resource)
    if row is None:
        nothing = np.zeros(inputs.slots.size, np.int64)
        return nothing, nothing
    return inputs.board.capacity[row, inputs.slots], np.maximum(0, inputs.board.free[row, inputs.slots])


def _smaller_request(resource: str, asked: int, attainable: Array) -> tuple[Array, Callable[[int], str]]:
    cost = (asked - attainable) / asked
    if resource in _ESSENTIAL:
        cost = np.where(attainable == 0, NO_REMEDY, cost)

    def change(at: int) -> str:
        left = int(attainable[at])
        return (
            f"with {resource} <= {format_amount_rounded_down(resource, left)}"
            if left
            else f"without {resource}"
        )

    return cost, change


def _attainable(inputs: FeasibilityInput, resource: str, asked: int, free: Array) -> Array:
    """The largest amount a task could get now: of GPUs whole ones, or a share of one."""
    if resource != GPU:
        return free
    devices = inputs.board.devices[inputs.slots]
    part = np.minimum(WHOLE_GPU, devices.max(axis=1, initial=0))
    whole = (devices == WHOLE_GPU).sum(axis=1) * WHOLE_GPU
    best = np.where(
        (whole == 0) | (asked < WHOLE_GPU), part, np.minimum(whole, free // WHOLE_GPU * WHOLE_GPU)
    )
    found: Array = np.minimum(best, free)
    return found


def _describe_on_node(resource: str, asked: int, amounts: Array, kind: str) -> Callable[[int], str]:
    def describe(at: int) -> str:
        if kind == "no":
            return f"no {resource}"
        available, requested = format_amounts_apart(resource, int(amounts[at]), asked)
        return f"{available} {resource} {kind}, asked {requested}"

    return describe


def _describe_shortage(resource: str, asked: int, on: Array, largest: int, kind: str) -> str:
    count = int(np.count_nonzero(on))
    nodes = count_of_nodes(count, on.size, "has", "have")
    if kind == "no":
        return f"no node has {resource}" if count == on.size else f"{nodes} no {resource}"
    available, requested = format_amounts_apart(resource, largest, asked)
    if kind == "free":
        return f"{nodes} too little free {resource}: largest free {available}, asked {requested}"
    return f"{nodes} too little {resource} in all: largest {available}, asked {requested}"


def fragmented_gpus(inputs: FeasibilityInput) -> Iterator[Obstacle]:
    """Nodes with enough GPU capacity free in total, but not on one device, or not as whole devices."""
    asked = inputs.spec.needs.get(GPU, 0)
    if not asked:
        return
    capacity, free = _amounts(inputs, GPU)
    devices = inputs.board.devices[inputs.slots]
    on = inputs.has_reported & (capacity >= asked) & (free >= asked) & ~fits_gpus(devices, asked)
    count = int(np.count_nonzero(on))
    if not count:
        return
    best = _attainable(inputs, GPU, asked, free)
    what = (
        f"no device with {format_amount(GPU, asked)} free"
        if asked < WHOLE_GPU
        else "too few whole devices free"
    )
    nodes = count_of_nodes(count, on.size, "has", "have")
    largest = format_amount(GPU, int(best[on].max()))
    text = f"{nodes} {what}: largest {largest}, asked {format_amount(GPU, asked)}"
    cost, change = _smaller_request(GPU, asked, best)
    yield inputs.make_obstacle(GPU, on, text, what)._replace(cost=cost, change=change)
