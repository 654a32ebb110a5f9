"""Resource needs of a new job, with the origin of each: its spec, its namespace, or earlier usage."""

from collections.abc import Iterable
from math import ceil

import msgspec

from rota.model.amounts import CPU, DISK, GPU, MEMORY
from rota.model.columns import column
from rota.model.job import JobKind, JobSpec, NeedOrigin
from rota.model.lifecycle import AttemptState
from rota.model.limits import OBSERVED_BLOCKS, OBSERVED_MEMORY_MIN, OBSERVED_RUN_US
from rota.model.view import JobView, View

_ALWAYS = (CPU, MEMORY)  # resources that always have an origin
_ORDER = (CPU, MEMORY, DISK, GPU)
_MARGIN = 1.2  # factor above the peak of used memory
_BUSY = 0.1  # cores: tolerance above a whole number
_MIB = 2**20
_SUCCEEDED = int(AttemptState.SUCCEEDED)


def with_origins(spec: JobSpec, stated: Iterable[str]) -> JobSpec:
    """Record which needs the user stated; a need without an origin is never replaced."""
    origins = dict.fromkeys((*_ALWAYS, *spec.needs), NeedOrigin.DEFAULT)
    return msgspec.structs.replace(spec, origins=origins | dict.fromkeys(stated, NeedOrigin.EXPLICIT))


def assess_needs(view: View, spec: JobSpec) -> JobSpec:
    """Assess the needs once, at submit: later usage or settings do not change them."""
    # Without recorded origins it is unknown what the user stated: the needs stay as they are.
    if not spec.origins:
        return spec
    namespace = view.namespaces.get(spec.namespace)
    defaults = {} if namespace is None else namespace.defaults
    from_namespace = {
        name: most for name, most in defaults.items() if spec.origins.get(name) is not NeedOrigin.EXPLICIT
    }
    origins = spec.origins | dict.fromkeys(from_namespace, NeedOrigin.NAMESPACE)
    needs = _in_order(spec.needs | from_namespace) if from_namespace else spec.needs
    observed = {
        resource: amount
        for resource, amount in _last_used(view, spec).items()
        if origins[resource] is NeedOrigin.DEFAULT and amount > needs.get(resource, 0)
    }
    return msgspec.structs.replace(spec, needs=needs, origins=origins, observed=observed)


def _in_order(needs: dict[str, int]) -> dict[str, int]:
    names = (*_ORDER, *sorted(needs.keys() - set(_ORDER)))
    return {name: needs[name] for name in names if needs.get(name)}


def _last_used(view: View, spec: JobSpec) -> dict[str, int]:
    """Usage of the last succeeded job of the series, if retained; capped at the largest node."""
    last = (
        view.ended_jobs.last_succeeded.get((spec.namespace, spec.series))
        if spec.kind is JobKind.BATCH
        else None
    )
    if last is None or last not in view.jobs:
        return {}
    used = used_by(view.jobs[last])
    return {resource: min(amount, _largest(view, resource)) for resource, amount in used.items()}


def used_by(job: JobView) -> dict[str, int]:
    """Peak usage of its last tasks: memory with a margin, cores only beyond the first."""
    peak_kib, cores = 0, 0.0
    for block in list(job.statuses.values())[-OBSERVED_BLOCKS:]:
        succeeded = column(block, "state") == _SUCCEEDED
        peak_kib = max(peak_kib, int(column(block, "peak_kib")[succeeded].max(initial=0)))
        long = succeeded & (column(block, "ran_us") >= OBSERVED_RUN_US)
        busy = column(block, "cpu_us")[long] / column(block, "ran_us")[long]
        cores = max(cores, float(busy.max(initial=0.0)))
    memory = ceil(peak_kib * 1024 * _MARGIN / _MIB) * _MIB
    whole = ceil(cores - _BUSY)
    found = {CPU: whole * 1000 if whole > 1 else 0, MEMORY: memory if memory >= OBSERVED_MEMORY_MIN else 0}
    return {resource: amount for resource, amount in found.items() if amount}


def _largest(view: View, resource: str) -> int:
    """The largest amount that any node has, or that a cluster could provision."""
    table = view.node_table
    row = table.rows.get(resource)
    existing = 0 if row is None else int(table.capacity[row, : table.size].max(initial=0))
    provisioned = (
        intent.capacity.get(resource, 0) for intent in view.cluster_intents.values() if intent.max_nodes
    )
    return max(existing, *provisioned, 0)
