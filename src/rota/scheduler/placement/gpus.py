"""What is asked of GPU nodes lately, learnt from the jobs themselves; and the density policy on the board."""

from collections import Counter

import numpy as np

from rota.model.amounts import CPU, GPU, MEMORY
from rota.model.columns import Array
from rota.model.ids import JobId
from rota.model.limits import DEMAND_JOBS, DEMAND_JOBS_STEP
from rota.model.node_table import NodeTable
from rota.model.shape import Op, Shape
from rota.model.view import View
from rota.scheduler.placement.board import NodeSlice
from rota.scheduler.placement.density import GpuDemand, GpuNodes, GpuRequest, RankedNodes, rank

GPU_MODEL_LABEL = "gpu_model"  # the label


class GpuScorer:
    """The demand by which GPU nodes are judged. It changes now and then, and with it every row."""

    def __init__(self) -> None:
        self.version = 0
        self._demand = GpuDemand.from_arrivals({})
        self._arrivals: Counter[GpuRequest] = Counter()
        self._next_update_at = 0  # the number of jobs at which to look again
        self._requests: dict[Shape, GpuRequest] = {}
        self._models: tuple[int, tuple[str, ...], Array] = (-1, (), np.zeros(0, np.intp))

    def update_demand(self, view: View) -> None:
        """Of the last jobs, often while there are few, then every so many."""
        last = view.counters.jobs
        if last < self._next_update_at:
            return
        self._next_update_at = last + max(1, min(last, DEMAND_JOBS_STEP))
        arrivals: Counter[GpuRequest] = Counter()
        for number in range(max(1, last - DEMAND_JOBS + 1), last + 1):
            job = view.jobs.get(JobId(str(number)))
            if job is not None:
                arrivals[gpu_request(job.spec.shape)] += job.spec.count
        if arrivals != self._arrivals:
            self._arrivals, self._demand = arrivals, GpuDemand.from_arrivals(arrivals)
            self._requests.clear()
            self.version += 1

    def rank(self, nodes: NodeSlice) -> RankedNodes:
        """How well the shape sits on nodes that have GPUs."""
        ask = self._requests.get(nodes.shape)
        if ask is None:
            ask = self._requests[nodes.shape] = gpu_request(nodes.shape)
        names, models = self._models_of(nodes.node_table)
        columns = GpuNodes(
            cpu_free=np.maximum(0, nodes.free(CPU)),  # of what is not asked for there may be less than none
            memory_free=np.maximum(0, nodes.free(MEMORY)),
            devices=nodes.devices,
            model=models[nodes.slots],
            models=names,
        )
        return rank(self._demand, ask, columns)

    def _models_of(self, node_table: NodeTable) -> tuple[tuple[str, ...], Array]:
        version, names, index = self._models
        if version != node_table.labels_version or index.size != node_table.size:
            said = [labels.get(GPU_MODEL_LABEL) for labels in node_table.labels]
            names = tuple(sorted({model for model in said if model is not None}))
            places = {model: at for at, model in enumerate(names)}
            index = np.array([-1 if model is None else places[model] for model in said], np.intp)
            self._models = (node_table.labels_version, names, index)
        return names, index


def gpu_request(shape: Shape) -> GpuRequest:
    """What it wants of a GPU node; which models, as far as conditions say so in so many words."""
    needs = dict(shape.needs)
    named = [
        one.values for one in shape.where if one.label == GPU_MODEL_LABEL and one.op in (Op.EQUAL, Op.IN)
    ]
    models = named[0] if named else ()
    return GpuRequest(needs.get(CPU, 0), needs.get(MEMORY, 0), needs.get(GPU, 0), models)
