"""Tables of amounts <-> the model: quotas, machines, defaults and limits of tasks, bounds of a namespace.

In the model cores and GPUs are counted in thousandths, and sizes in bytes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rota.apiserver.spec import fields, placement
from rota.model import limits
from rota.model.amounts import (
    CPU,
    DISK,
    GPU,
    MEMORY,
    TASKS,
    WHOLE_GPU,
    parse_count,
    parse_cpu,
    parse_gpu,
    parse_size,
)
from rota.model.errors import BadField
from rota.model.limits import AMOUNT_MAX, COUNT_MAX, GPUS_MAX, JOBS_WAITING_MAX, PRIORITY_MAX, RESOURCES_MAX
from rota.model.namespace import NamespaceBounds, NamespaceUsage

GPU_MAX = 10**6  # devices of a whole cluster: more is a typing error
PIDS = "pids"
TASK_LIMITS_HINT = 'write {"memory": "1g", "cpu": 2, "pids": 100}, or some of these'
_CLUSTERS_HINT = 'write a list of names, as ["default"]'

Parsers = Mapping[str, Callable[[str, object], int]]


def _devices(field: str, value: object) -> int:
    return fields.number(field, parse_count, value, 0, GPUS_MAX) * WHOLE_GPU


def _gpu_share(field: str, value: object) -> int:
    """A number of devices that may have a fraction: 0.5, 1.5, 8."""
    hint = "write a number of GPUs, as 2 or 1.5"
    if isinstance(value, str):
        try:
            value = float(value[:40])
        except ValueError:
            raise BadField(field, "is not a number of GPUs", hint) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= GPU_MAX:
        raise BadField(field, "is not a number of GPUs", hint)
    return round(value * WHOLE_GPU)


def _cores(field: str, value: object) -> int:
    return fields.number(field, parse_cpu, value)


def _size(field: str, value: object) -> int:
    return fields.number(field, parse_size, value)


def _tasks(field: str, value: object) -> int:
    return fields.number(field, parse_count, value, 0, COUNT_MAX)


def _positive_cores(field: str, value: object) -> int:
    cpu = _cores(field, value)
    if cpu == 0:
        raise BadField(field, "0 cores would let any number run at once", "write at least 0.001")
    return cpu


def _task_devices(field: str, value: object) -> int:
    return fields.number(field, parse_gpu, value, GPUS_MAX)


def _refuse_tasks(field: str, value: object) -> int:
    del value
    raise BadField(
        field, "is not a resource of a task", "write cpu, memory, disk, gpu or a resource of nodes"
    )


MACHINE_PARSERS: Parsers = {CPU: _cores, MEMORY: _size, DISK: _size, GPU: _devices}
QUOTA_PARSERS: Parsers = {CPU: _cores, MEMORY: _size, DISK: _size, GPU: _gpu_share, TASKS: _tasks}

TASK_PARSERS: Parsers = {
    CPU: _positive_cores,
    MEMORY: _size,
    DISK: _size,
    GPU: _task_devices,
    TASKS: _refuse_tasks,
}


def parse_quantities(field: str, value: object, known: Parsers) -> dict[str, int]:
    """The amounts by resource; a resource without a parser is a custom one, counted in whole numbers."""
    if not isinstance(value, dict):
        raise BadField(field, "is not an object", 'write {"cpu": 8, "memory": "32g"}')
    if len(value) > RESOURCES_MAX:
        raise BadField(field, f"has {len(value)} entries", f"write at most {RESOURCES_MAX}")
    found: dict[str, int] = {}
    for resource, amount in value.items():
        entry = f"{field}.{fields.name(field, resource)}"
        parse = known.get(resource)
        if parse is not None:
            found[resource] = parse(entry, amount)
        else:
            fields.resource(field, resource)
            found[resource] = fields.number(entry, parse_count, amount, 0, AMOUNT_MAX)
    return dict(sorted(found.items()))


def quantities_json(amounts: Mapping[str, int]) -> dict[str, Any]:
    """The amounts as the API shows them: cores and GPUs as decimal numbers."""
    return {name: amount / 1000 if name in (CPU, GPU) else amount for name, amount in amounts.items()}


def parse_task_limits(field: str, value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise BadField(field, "is not an object", TASK_LIMITS_HINT)
    for name in value:
        if name not in (MEMORY, CPU, PIDS):
            raise BadField(f"{field}.{fields.printable(str(name))}", "is not a limit", TASK_LIMITS_HINT)
    return {name: _parse_limit(f"{field}.{name}", name, limit) for name, limit in sorted(value.items())}


def _parse_limit(field: str, name: str, value: object) -> int:
    if name == PIDS:
        return fields.number(field, parse_count, value, 1, limits.PIDS_MAX)
    if name == CPU:
        cpu = fields.number(field, parse_cpu, value)
        if cpu < limits.CPU_LIMIT_MILLI_MIN:
            raise BadField(field, "is too little to run at all", "write at least 0.01 cores, or leave it out")
        return cpu
    memory = fields.number(field, parse_size, value)
    if memory < limits.MEMORY_LIMIT_MIN:
        raise BadField(field, "is too little for any program", "write at least 1m, or leave it out")
    return memory


def parse_bounds(value: object) -> NamespaceBounds:
    """The bounds that are given; the others are unset."""
    body = fields.known_fields(value, tuple(_BOUND_PARSERS))
    given = {name: bound for name, bound in body.items() if bound is not None}
    return NamespaceBounds(
        **{
            _BOUND_PARSERS[name].attribute: _BOUND_PARSERS[name].parse(f"bounds.{name}", bound)
            for name, bound in given.items()
        }
    )


def bounds_json(bounds: NamespaceBounds) -> dict[str, Any]:
    values = {name: getattr(bounds, parser.attribute) for name, parser in _BOUND_PARSERS.items()}
    return {name: value for name, value in values.items() if value is not None}


def usage_json(usage: NamespaceUsage) -> dict[str, int]:
    return {"jobs": usage.jobs, "tasks": usage.tasks, "bytes": usage.stored_bytes}


def _count_parser(maximum: int) -> Callable[[str, object], int]:
    return lambda field, value: fields.number(field, parse_count, value, 0, maximum)


def _parse_stored_bytes(field: str, value: object) -> int:
    return min(fields.number(field, parse_size, value), AMOUNT_MAX)


def _parse_cluster_names(field: str, value: object) -> tuple[str, ...]:
    return tuple(fields.name(field, name) for name in fields.texts(field, value, _CLUSTERS_HINT))


class _BoundParser(NamedTuple):
    """The attribute of NamespaceBounds that a field sets, and its parser."""

    attribute: str
    parse: Callable[[str, object], Any]


_BOUND_PARSERS: Mapping[str, _BoundParser] = {
    "priority": _BoundParser("priority", _count_parser(PRIORITY_MAX)),
    "tolerate": _BoundParser("tolerate", placement.parse_tolerations),
    "clusters": _BoundParser("clusters", _parse_cluster_names),
    "jobs": _BoundParser("jobs", _count_parser(JOBS_WAITING_MAX)),
    "tasks": _BoundParser("tasks", _count_parser(COUNT_MAX * JOBS_WAITING_MAX)),
    "bytes": _BoundParser("stored_bytes", _parse_stored_bytes),
}
