"""The policies beside Rota's in bench/density.py, and what FGD's authors published of theirs."""

import numpy as np

from rota.model.columns import Array
from rota.scheduler.placement.density import GpuDemand, GpuNodes, GpuRequest, RankedNodes, fragmentation
from rota.scheduler.placement.gpu_prices import DEVICE_MILLI

# Percent of the GPUs that FGD gives out when 100 % and 130 % have come: their simulator, mean of ten seeds.
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


def at_random(chance: np.random.Generator, ask: GpuRequest, nodes: GpuNodes) -> RankedNodes:
    """Any node; any device of it."""
    room = fits(ask, nodes)
    return RankedNodes(
        np.where(room.any(axis=1), 0.0, -np.inf), (room * chance.random(room.shape)).argmax(axis=1)
    )


def best_fit(ask: GpuRequest, nodes: GpuNodes) -> RankedNodes:
    """Least left over, cores of 128 and GPUs of 8 alike, in whole percent; the fullest device of the node."""
    room = fits(ask, nodes)
    cpu_left = nodes.cpu_free - ask.cpu_milli
    gpu_left = nodes.devices.sum(axis=1) - ask.gpu_milli
    score = np.floor(100 - 50 * cpu_left / 128_000 - 50 * gpu_left / 8_000)
    device = np.where(room, nodes.devices, DEVICE_MILLI + 1).argmin(axis=1)
    return RankedNodes(np.where(room.any(axis=1), score, -np.inf), device)


def fgd(demand: GpuDemand, ask: GpuRequest, nodes: GpuNodes) -> RankedNodes:
    """The steepest descent of fragmentation, rounded to 0..100 as its authors' simulator does."""
    room = fits(ask, nodes)
    node, place = np.nonzero(room)
    after = only(nodes, node)
    after.cpu_free[:] -= ask.cpu_milli
    if ask.is_share:
        after.devices[np.arange(len(node)), place] -= ask.gpu_milli
    else:
        whole = after.devices == DEVICE_MILLI
        after.devices[whole & (whole.cumsum(axis=1) <= ask.gpu_milli // DEVICE_MILLI)] = 0
    descent = fragmentation(demand, nodes)[node] - fragmentation(demand, after)
    score = np.full(room.shape, -np.inf)
    score[room] = np.floor(100 / (1 + np.exp(-descent / 1000)))
    return RankedNodes(score.max(axis=1), score.argmax(axis=1))


def fits(ask: GpuRequest, nodes: GpuNodes) -> Array:
    """Where there is room: bool[n, devices] for a share, else bool[n, 1]."""
    room = (nodes.cpu_free >= ask.cpu_milli) & (nodes.memory_free >= ask.memory)
    if ask.models:
        room &= np.array([*(model in ask.models for model in nodes.models), False])[nodes.model]
    if ask.is_share:
        return room[:, None] & (nodes.devices >= ask.gpu_milli)
    return (room & ((nodes.devices == DEVICE_MILLI).sum(axis=1) * DEVICE_MILLI >= ask.gpu_milli))[:, None]


def only(nodes: GpuNodes, rows: Array) -> GpuNodes:
    """A copy of these nodes."""
    *columns, models = nodes
    return GpuNodes(*(column[rows] for column in columns), models)
