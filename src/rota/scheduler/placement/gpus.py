"""Recent demand for GPUs, learnt from submitted jobs; and the density policy applied to the board."""

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

GPU_MODEL_LABEL = "gpu_model"


class GpuScorer:
    """Scores GPU nodes by recent demand. `version` changes with the demand, and with it every score row."""

    def __init__(self) -> None:
        self.version = 0
        self._demand = GpuDemand.from_arrivals({})
        self._arrivals: Counter[GpuRequest] = Counter()
        self._next_update_at = 0  # number of submitted jobs at which to count again
        self._requests: dict[Shape, GpuRequest] = {}
        self._models: tuple[int, tuple[str, ...], Array] = (-1, (), np.zeros(0, np.intp))

    def update_demand(self, view: View) -> None:
        """Count the demand of the last jobs: often while there are few, later every DEMAND_JOBS_STEP jobs."""
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
        """Density score of the shape on nodes that have GPUs."""
        request = self._requests.get(nodes.shape)
        if request is None:
            request = self._requests[nodes.shape] = gpu_request(nodes.shape)
        names, models = self._models_of(nodes.node_table)
        columns = GpuNodes(
            cpu_free=np.maximum(0, nodes.free(CPU)),  # a resource that is not requested may be overcommitted
            memory_free=np.maximum(0, nodes.free(MEMORY)),
            devices=nodes.devices,
            model=models[nodes.slots],
            models=names,
        )
        return rank(self._demand, request, columns)

    def _models_of(self, node_table: NodeTable) -> tuple[tuple[str, ...], Array]:
        version, names, index = self._models
        if version != node_table.labels_version or index.size != node_table.size:
            models = [labels.get(GPU_MODEL_LABEL) for labels in node_table.labels]
            names = tuple(sorted({model for model in models if model is not None}))
            places = {model: at for at, model in enumerate(names)}
            index = np.array([-1 if model is None else places[model] for model in models], np.intp)
            self._models = (node_table.labels_version, names, index)
        return names, index


def gpu_request(shape: Shape) -> GpuRequest:
    """What a task needs of a GPU node; models only where a constraint names them by = or in."""
    needs = dict(shape.needs)
    named = [
        constraint.values
        for constraint in shape.where
        if constraint.label == GPU_MODEL_LABEL and constraint.op in (Op.EQUAL, Op.IN)
    ]
    models = named[0] if named else ()
    return GpuRequest(needs.get(CPU, 0), needs.get(MEMORY, 0), needs.get(GPU, 0), models)
