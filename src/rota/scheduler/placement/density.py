"""Recent mix of requests + one request + GPU nodes -> a score for each node, so that GPUs fill up."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np

from rota.model.columns import Array
from rota.scheduler.placement.gpu_prices import DEVICE_MILLI, part_values

TYPICAL_MAX = 256  # requests that score a node, the most frequent ones: each adds to the cost of a decision
# The weights, in milli-GPU of fragmentation, were chosen on openb's mixes; bench/density.py measures them.
# Among nodes with equal fragmentation the fuller one wins; a GPU without free cores beside it is lost.
CPU_LEFT = 40 * 0.7 / 128_000  # for a milli-core that is left
GPU_LEFT = 40 * 0.3 / 8_000  # for a milli-GPU that is left
OFF_PATTERN = 4.0  # for a milli-GPU that can no longer be filled as the best cut would
NOISE_MILLI = 0.001  # prices are floats: differences below this are rounding noise and must stay ties


class GpuRequest(NamedTuple):
    """What one task requests of a GPU node."""

    cpu_milli: int
    memory: int
    gpu_milli: int  # 0: none; 1..999: part of one device; 1000 * k: k whole devices
    models: tuple[str, ...] = ()  # GPU models it may run on; empty: any

    @property
    def is_share(self) -> bool:
        return 0 < self.gpu_milli < DEVICE_MILLI


class GpuNodes(NamedTuple):
    """Columns of the n nodes to score."""

    cpu_free: Array  # int64[n], in milli-cores
    memory_free: Array  # int64[n], in bytes
    devices: Array  # int64[n, D]: free milli of each device, 0 where there is none
    model: Array  # index into `models`, -1 where unknown
    models: tuple[str, ...]


class RankedNodes(NamedTuple):
    """For each node: the score of the request there."""

    score: Array  # float64[n], -inf where it does not fit
    device: Array  # int64[n]: the device to share, -1 where none is shared


class GpuDemand(NamedTuple):
    """The mix of recent requests: the typical ones for GPUs, smallest first, and the values that follow."""

    arrivals: int  # number of typical requests, including those without a GPU
    times: Array  # int64[m]: how often each was requested
    cpu_milli: Array
    memory: Array
    models: tuple[tuple[str, ...], ...]  # each choice of models once
    choice: Array  # int64[m]: index into `models`
    fitting: Array  # int64[1001]: how many share requests fit into n free milli
    fitting_whole: Array  # int64[k + 1]: how many requests fit into n free devices, shares included
    value: Array  # float64[1001]: the value of n free milli of one device

    @classmethod
    def from_arrivals(cls, arrivals: Mapping[GpuRequest, int]) -> Self:
        seen = [request for request in arrivals if arrivals[request] > 0]
        typical = sorted(seen, key=lambda request: (-arrivals[request], request))[:TYPICAL_MAX]
        requests = sorted(
            (request for request in typical if request.gpu_milli),
            key=lambda request: (request.gpu_milli, request),
        )
        models = tuple(dict.fromkeys(request.models for request in requests))
        sizes = np.array([request.gpu_milli for request in requests], np.int64)
        devices_max = sizes[-1] // DEVICE_MILLI if requests else 0
        milli = np.minimum(np.arange(DEVICE_MILLI + 1), DEVICE_MILLI - 1)
        wholes = np.maximum(np.arange(devices_max + 1) * DEVICE_MILLI, DEVICE_MILLI - 1)
        return cls(
            arrivals=sum(arrivals[request] for request in typical),
            times=np.array([arrivals[request] for request in requests], np.int64),
            cpu_milli=np.array([request.cpu_milli for request in requests], np.int64),
            memory=np.array([request.memory for request in requests], np.int64),
            models=models,
            choice=np.array([models.index(request.models) for request in requests], np.int64),
            fitting=np.searchsorted(sizes, milli, "right"),
            fitting_whole=np.searchsorted(sizes, wholes, "right"),
            value=part_values(_cuts(arrivals)),
        )


def _cuts(arrivals: Mapping[GpuRequest, int]) -> Counter[int]:
    """How often each size is cut from a device. A whole device has one price, however many are requested."""
    cuts: Counter[int] = Counter()
    for request, times in arrivals.items():
        if request.gpu_milli:
            cuts[min(request.gpu_milli, DEVICE_MILLI)] += times
    return cuts


def rank(demand: GpuDemand, request: GpuRequest, nodes: GpuNodes) -> RankedNodes:
    """The score of a node depends on that node alone, so it holds until the node changes.

    It is in milli-GPU: the fragmentation removed, minus a little for what stays free (the fuller node wins),
    minus the value of the cuts that the chosen device no longer allows.
    """
    cpu_left = nodes.cpu_free - request.cpu_milli
    gpu_left = nodes.devices.sum(axis=1) - request.gpu_milli
    score = _defragmentation(demand, request, nodes)
    score -= (CPU_LEFT * cpu_left + GPU_LEFT * gpu_left)[:, None]
    if request.is_share:
        score -= OFF_PATTERN * _off_pattern(demand, request.gpu_milli, nodes.devices)
    score[~_fitting(request, nodes)] = -np.inf
    best = score.argmax(axis=1)
    top = score[np.arange(len(best)), best]
    if not request.is_share:
        best[:] = -1
    best[top == -np.inf] = -1
    return RankedNodes(top, best)


def fragmentation(demand: GpuDemand, nodes: GpuNodes) -> Array:
    """float64[n]: the free milli-GPU that a typical arrival cannot use, on average over the mix.

    That is everything free where the request cannot run on the node at all, else what is free on devices that
    are too full for it. The measure is that of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023).
    """
    able = _runnable(demand, nodes, nodes.cpu_free, nodes.memory_free)
    usable = _usable_as_shares(demand, able, nodes.devices).sum(axis=1)
    usable += _usable_as_wholes(demand, able, _count_wholes(nodes))[:, 0]
    lost: Array = nodes.devices.sum(axis=1) - usable / max(1, demand.arrivals)
    return lost


def _fitting(request: GpuRequest, nodes: GpuNodes) -> Array:
    """bool[n, places]: where the request fits."""
    fits = (nodes.cpu_free >= request.cpu_milli) & (nodes.memory_free >= request.memory)
    if request.models:
        fits &= np.array([*(model in request.models for model in nodes.models), False])[nodes.model]
    if request.is_share:
        return fits[:, None] & (nodes.devices >= request.gpu_milli)
    return fits[:, None] & (_count_wholes(nodes) * DEVICE_MILLI >= request.gpu_milli)


def _defragmentation(demand: GpuDemand, request: GpuRequest, nodes: GpuNodes) -> Array:
    """float64[n, places]: fragmentation before - after, for each device that a share could be taken from.

    Placing the request reduces what is free equally everywhere, so only what is usable has to be counted.
    """
    devices, wholes = nodes.devices, _count_wholes(nodes)
    able = _runnable(demand, nodes, nodes.cpu_free, nodes.memory_free)
    before = _usable_as_shares(demand, able, devices).sum(axis=1)[:, None] + _usable_as_wholes(
        demand, able, wholes
    )
    able = _runnable(demand, nodes, nodes.cpu_free - request.cpu_milli, nodes.memory_free - request.memory)
    each = _usable_as_shares(demand, able, devices)
    after = each.sum(axis=1)[:, None]
    if request.is_share:
        after = after - each + _usable_as_shares(demand, able, np.maximum(0, devices - request.gpu_milli))
        wholes = wholes - (devices == DEVICE_MILLI)
    else:
        after = after - request.gpu_milli * able[:, demand.fitting[-1:]]
        wholes = np.maximum(0, wholes - request.gpu_milli // DEVICE_MILLI)
    after = after + _usable_as_wholes(demand, able, wholes)
    gain: Array = request.gpu_milli - (before - after) / max(1, demand.arrivals)
    return gain


def _runnable(demand: GpuDemand, nodes: GpuNodes, cpu_free: Array, memory_free: Array) -> Array:
    """int64[n, m + 1]: arrivals that cores, memory and model allow there, of the i smallest GPU requests.

    Counted in whole arrivals, so that sums are exact whatever their order.
    """
    able = np.zeros((len(cpu_free), len(demand.times) + 1), np.int64)
    runs = cpu_free[:, None] >= demand.cpu_milli
    runs &= memory_free[:, None] >= demand.memory
    if any(demand.models):
        models = (*nodes.models, None)
        allows = [[not choice or model in choice for choice in demand.models] for model in models]
        runs &= np.array(allows)[:, demand.choice][nodes.model]
    np.cumsum(runs * demand.times, axis=1, out=able[:, 1:])
    return able


def _usable_as_shares(demand: GpuDemand, able: Array, devices: Array) -> Array:
    """int64[n, D]: milli-GPU of each device x the arrivals that can use them as a share."""
    usable: Array = devices * _lookup(able, demand.fitting[devices])
    return usable


def _usable_as_wholes(demand: GpuDemand, able: Array, wholes: Array) -> Array:
    """int64[n, places]: milli-GPU of the wholly free devices x the arrivals that need that many or fewer."""
    fitting = demand.fitting_whole[np.minimum(wholes, len(demand.fitting_whole) - 1)]
    usable: Array = DEVICE_MILLI * wholes * (_lookup(able, fitting) - able[:, demand.fitting[-1:]])
    return usable


def _count_wholes(nodes: GpuNodes) -> Array:
    """int64[n, 1]: number of wholly free devices."""
    free: Array = (nodes.devices == DEVICE_MILLI).sum(axis=1, keepdims=True)
    return free


def _lookup(able: Array, columns: Array) -> Array:
    found: Array = able.take(columns + np.arange(0, able.size, able.shape[1])[:, None])
    return found


def _off_pattern(demand: GpuDemand, gpu_milli: int, devices: Array) -> Array:
    """Value of a device, minus the request's and the remaining value: 0 on an optimal cut."""
    after = demand.value[np.maximum(0, devices - gpu_milli)] + demand.value[gpu_milli]
    lost: Array = np.rint((demand.value[devices] - after) / NOISE_MILLI) * NOISE_MILLI
    return lost
