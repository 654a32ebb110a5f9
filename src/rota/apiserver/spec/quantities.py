"""A table of amounts, as of a quota or a machine -> the same in the model's units; and back."""

from collections.abc import Callable, Mapping
from typing import Any

from rota.apiserver.spec import fields
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
from rota.model.limits import AMOUNT_MAX, COUNT_MAX, GPUS_MAX, RESOURCES_MAX

GPU_MAX = 10**6  # devices of a whole cluster: more is a typing error

Parsers = Mapping[str, Callable[[str, object], int]]


def _devices(field: str, value: object) -> int:
    return fields.number(field, parse_count, value, 0, GPUS_MAX) * WHOLE_GPU


def _gpu_share(field: str, value: object) -> int:
    """Any number of devices, with parts: 0.5, 1.5, 8."""
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
        field, "is not what a task asks for", "write cpu, memory, disk, gpu or a resource of nodes"
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
    """What has no parser of its own is a whole number of a resource that somebody named."""
    if not isinstance(value, dict):
        raise BadField(field, "is not an object", 'write {"cpu": 8, "memory": "32g"}')
    if len(value) > RESOURCES_MAX:
        raise BadField(field, f"has {len(value)} entries", f"write at most {RESOURCES_MAX}")
    found: dict[str, int] = {}
    for resource, amount in value.items():
        named = f"{field}.{fields.name(field, resource)}"
        parse = known.get(resource)
        if parse is not None:
            found[resource] = parse(named, amount)
        else:
            fields.resource(field, resource)
            found[resource] = fields.number(named, parse_count, amount, 0, AMOUNT_MAX)
    return dict(sorted(found.items()))


def quantities_json(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Cores and GPUs as people count them."""
    return {name: amount / 1000 if name in (CPU, GPU) else amount for name, amount in amounts.items()}
