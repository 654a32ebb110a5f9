"""openb's lists, or a synthetic cluster and mix -> empty nodes, and requests to draw from. [I/O]"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rota.scheduler.placement.density import GpuNodes, GpuRequest
from rota.scheduler.placement.gpu_prices import DEVICE_MILLI

MIB, GIB = 2**20, 2**30
NODE_LIST = "openb_node_list_gpu_node.csv"
PREFIX = "openb_pod_list_"
# Synthetic cluster and mix: (nodes, cores, GiB, GPUs, model), and (weight, cores, GiB, milli-GPU, models).
SYNTHETIC_NODES = (
    (60, 96, 384, 8, "large"),
    (80, 64, 256, 4, "middle"),
    (60, 32, 128, 2, "small"),
)
SYNTHETIC_MIX = (
    (14, 4, 16, 0, ()),
    (6, 24, 64, 0, ()),
    (8, 2, 8, 150, ()),
    (12, 4, 16, 300, ()),
    (10, 6, 24, 450, ()),
    (6, 8, 24, 600, ("large", "middle")),
    (12, 4, 16, 750, ()),
    (20, 10, 40, 1000, ()),
    (5, 10, 40, 1000, ("small",)),
    (4, 20, 80, 2000, ()),
    (2, 40, 160, 4000, ()),
    (1, 80, 320, 8000, ("large",)),
)
SYNTHETIC = (
    "synthetic: 60 nodes with 8 GPUs, 80 with 4 and 60 with 2, of three models; 12 kinds of task: 20 %"
    " want no GPU, 48 % a share of one (0.15 to 0.75), 25 % one and 7 % two, four or eight; 12 % name models"
)


class Trace(NamedTuple):
    """Empty nodes, and the requests from which arrivals are drawn."""

    nodes: GpuNodes
    asks: list[GpuRequest]


def mixes_in(traces: Path) -> list[str]:
    return sorted(path.stem.removeprefix(PREFIX) for path in traces.glob(f"{PREFIX}*.csv"))


def read(traces: Path, mix: str) -> Trace:
    with (traces / NODE_LIST).open(newline="") as file:
        machines = [
            (int(row["cpu_milli"]), int(row["memory_mib"]) * MIB, int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]
    with (traces / f"{PREFIX}{mix}.csv").open(newline="") as file:
        return Trace(empty(machines), [request_from(row) for row in csv.DictReader(file)])


def request_from(row: dict[str, str]) -> GpuRequest:
    cpu, memory, gpus = int(row["cpu_milli"]), int(row["memory_mib"]) * MIB, int(row["num_gpu"])
    if not gpus:
        return GpuRequest(cpu, memory, 0)
    return GpuRequest(
        cpu, memory, gpus * int(row["gpu_milli"]), tuple(filter(None, row["gpu_spec"].split("|")))
    )


def synthetic() -> Trace:
    kinds = [
        ((cpu * 1000, gib * GIB, gpus, model), count) for count, cpu, gib, gpus, model in SYNTHETIC_NODES
    ]
    asks = [
        (GpuRequest(cpu * 1000, gib * GIB, gpu, models), weight)
        for weight, cpu, gib, gpu, models in SYNTHETIC_MIX
    ]
    return Trace(
        empty([kind for kind, count in kinds for _ in range(count)]),
        [ask for ask, weight in asks for _ in range(weight)],
    )


def empty(machines: list[tuple[int, int, int, str]]) -> GpuNodes:
    """Nodes from (milli-cores, bytes of memory, GPUs, model)."""
    cpu, memory, gpus = (np.array(column) for column in list(zip(*machines, strict=True))[:3])
    models = tuple(dict.fromkeys(model for *_, model in machines))
    devices = np.where(np.arange(gpus.max()) < gpus[:, None], DEVICE_MILLI, 0)
    model = np.array([models.index(model) for *_, model in machines])
    return GpuNodes(cpu, memory, devices, model, models)
