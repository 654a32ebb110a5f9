"""What a task may use at most, as it was said -> in bytes, thousandths of a core, and processes."""

from rota.apiserver.spec import fields
from rota.model import limits
from rota.model.amounts import CPU, MEMORY, parse_count, parse_cpu, parse_size
from rota.model.errors import BadField

PIDS = "pids"
HINT = 'write {"memory": "1g", "cpu": 2, "pids": 100}, or some of these'


def parse_task_limits(field: str, value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise BadField(field, "is not an object", HINT)
    for name in value:
        if name not in (MEMORY, CPU, PIDS):
            raise BadField(f"{field}.{fields.printable(str(name))}", "is not a limit", HINT)
    return {name: _parse_limit(f"{field}.{name}", name, said) for name, said in sorted(value.items())}


def _parse_limit(field: str, name: str, said: object) -> int:
    if name == PIDS:
        return fields.number(field, parse_count, said, 1, limits.PIDS_MAX)
    if name == CPU:
        cpu = fields.number(field, parse_cpu, said)
        if cpu < limits.CPU_LIMIT_MILLI_MIN:
            raise BadField(field, "is too little to run at all", "write at least 0.01 cores, or leave it out")
        return cpu
    memory = fields.number(field, parse_size, said)
    if memory < limits.MEMORY_LIMIT_MIN:
        raise BadField(field, "is too little for any program", "write at least 1m, or leave it out")
    return memory
