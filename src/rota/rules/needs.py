"""A job + its namespace's defaults + what the last of its name used -> what it needs, each by whose word."""

from collections.abc import Iterable
from math import ceil

import msgspec

from rota.model.amounts import CPU, DISK, GPU, MEMORY
from rota.model.columns import column
from rota.model.job import JobKind, JobSpec, NeedOrigin
from rota.model.lifecycle import AttemptState
from rota.model.limits import OBSERVED_BLOCKS, OBSERVED_MEMORY_MIN, OBSERVED_RUN_US
from rota.model.view import JobView, View

_ALWAYS = (CPU, MEMORY)  # of which something is always said: by somebody, or by nobody
_ORDER = (CPU, MEMORY, DISK, GPU)
_MARGIN = 1.2  # of memory, above the most that was used
_BUSY = 0.1  # cores: by so little more than a whole number it was not busy
_MIB = 2**20
_SUCCEEDED = int(AttemptState.SUCCEEDED)


def with_origins(spec: JobSpec, said: Iterable[str]) -> JobSpec:
    """Of which resources its user spoke; where that is not noted, nothing is ever put in their place."""
    origins = dict.fromkeys((*_ALWAYS, *spec.needs), NeedOrigin.DEFAULT)
    return msgspec.structs.replace(spec, origins=origins | dict.fromkeys(said, NeedOrigin.EXPLICIT))


def assess_needs(view: View, spec: JobSpec) -> JobSpec:
    """Once, when it is submitted: whatever is used or set later does not change it."""
    if not spec.origins:
        return spec
    namespace = view.namespaces.get(spec.namespace)
    defaults = {} if namespace is None else namespace.defaults
    given = {
        name: most for name, most in defaults.items() if spec.origins.get(name) is not NeedOrigin.EXPLICIT
    }
    origins = spec.origins | dict.fromkeys(given, NeedOrigin.NAMESPACE)
    needs = _in_order(spec.needs | given) if given else spec.needs
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
    """By the last of its name that succeeded, as long as that is remembered; no more than some node has."""
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
    """By those of its last tasks that used most: memory with a margin, cores only beyond the first."""
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
    """That any node has, or would have that a cluster makes."""
    room = view.node_table
    row = room.rows.get(resource)
    there = 0 if row is None else int(room.capacity[row, : room.size].max(initial=0))
    made = (wish.capacity.get(resource, 0) for wish in view.cluster_intents.values() if wish.max_nodes)
    return max(there, *made, 0)
