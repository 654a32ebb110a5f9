"""The policies that bench/density.py compares with Rota's, and the published results of FGD."""

import numpy as np

from rota.model.columns import Array
from rota.scheduler.placement.density import GpuDemand, GpuNodes, GpuRequest, RankedNodes, fragmentation
from rota.scheduler.placement.gpu_prices import DEVICE_MILLI

# Percent of GPUs that FGD allocates when 100 % and 130 % have arrived: its own simulator, mean of ten seeds.
PUBLISHED = {
    "default": (95.23, 95.39),
    "cpu050": (95.00, 95.21),
    "cpu100": (95.21, 95.35),
    "cpu200": (94.82, 95.05),
    "cpu250": (93.20, 93.41),
    "gpushare40": (93.96, 94.15),
    "gpushare60": (91.25, 91.40),
    "gpushare80": (89.08, 89.31),
    "gpushare100": (86.64, 86.90),
    "gpuspec10": (94.66, 94.95),
    "gpuspec20": (94.66, 94.84),
    "gpuspec25": (93.91, 94.74),
    "gpuspec33": (87.84, 94.55),
    "multigpu20": (95.53, 95.65),
    "multigpu30": (96.36, 96.46),
    "multigpu40": (96.91, 96.99),
    "multigpu50": (97.09, 97.18),
}


def at_random(rng: np.random.Generator, request: GpuRequest, nodes: GpuNodes) -> RankedNodes:
    """A random device of a random node."""
    fitting = fits(request, nodes)
    return RankedNodes(
        np.where(fitting.any(axis=1), 0.0, -np.inf), (fitting * rng.random(fitting.shape)).argmax(axis=1)
    )


def best_fit(request: GpuRequest, nodes: GpuNodes) -> RankedNodes:
    """The node with the least left, of 128 cores and 8 GPUs, in whole percent; its most allocated device."""
    fitting = fits(request, nodes)
    cpu_left = nodes.cpu_free - request.cpu_milli
    gpu_left = nodes.devices.sum(axis=1) - request.gpu_milli
    score = np.floor(100 - 50 * cpu_left / 128_000 - 50 * gpu_left / 8_000)
    device = np.where(fitting, nodes.devices, DEVICE_MILLI + 1).argmin(axis=1)
    return RankedNodes(np.where(fitting.any(axis=1), score, -np.inf), device)


def fgd(demand: GpuDemand, request: GpuRequest, nodes: GpuNodes) -> RankedNodes:
    """The steepest descent of fragmentation, rounded to 0..100 as its authors' simulator does."""
    fitting = fits(request, nodes)
    node, device = np.nonzero(fitting)
    after = only(nodes, node)
    after.cpu_free[:] -= request.cpu_milli
    if request.is_share:
        after.devices[np.arange(len(node)), device] -= request.gpu_milli
    else:
        whole = after.devices == DEVICE_MILLI
        after.devices[whole & (whole.cumsum(axis=1) <= request.gpu_milli // DEVICE_MILLI)] = 0
    descent = fragmentation(demand, nodes)[node] - fragmentation(demand, after)
    score = np.full(fitting.shape, -np.inf)
    score[fitting] = np.floor(100 / (1 + np.exp(-descent / 1000)))
    return RankedNodes(score.max(axis=1), score.argmax(axis=1))


def fits(request: GpuRequest, nodes: GpuNodes) -> Array:
    """Where the request fits: bool[n, devices] for a share of a GPU, else bool[n, 1]."""
    fitting = (nodes.cpu_free >= request.cpu_milli) & (nodes.memory_free >= request.memory)
    if request.models:
        fitting &= np.array([*(model in request.models for model in nodes.models), False])[nodes.model]
    if request.is_share:
        return fitting[:, None] & (nodes.devices >= request.gpu_milli)
    return (fitting & ((nodes.devices == DEVICE_MILLI).sum(axis=1) * DEVICE_MILLI >= request.gpu_milli))[
        :, None
    ]


def only(nodes: GpuNodes, rows: Array) -> GpuNodes:
    """A copy of these nodes."""
    *columns, models = nodes
    return GpuNodes(*(column[rows] for column in columns), models)
