"""The openb trace, a list of pods and a list of nodes -> a Workload. [I/O]"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rota.apiserver.spec.job import parse_spec
from rota.model.amounts import CPU, DISK, GPU, MEMORY, WHOLE_GPU
from rota.model.errors import BadField, Rejected
from rota.model.limits import AMOUNT_MAX
from rota.sim.workloads.files import place, read_text
from rota.sim.workloads.model import Arrival, NodeGroup, Workload
from rota.sim.workloads.traces import (
    NO_CPU,
    NO_RUN_TIME,
    NOT_STARTED,
    TOO_LARGE,
    as_recorded,
    counted,
    trace_name,
)

MIB = 2**20
WHOLE_MAX = AMOUNT_MAX // MIB  # of any column: memory in bytes is still an amount
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)


def read_openb(path: Path) -> Workload:
    """Read a list of pods; the nodes are in openb_node_list*.csv in the same directory."""
    pods = list(_rows(path, POD_COLUMNS))
    beside = _node_list(path)
    try:
        nodes = _groups(_rows(beside, NODE_COLUMNS))
    except Rejected as error:
        raise Rejected(f"with {beside.name}: {error.detail}", field=error.field, hint=error.hint) from None
    recorded: list[Arrival] = []
    left_out: Counter[str] = Counter()
    for number, row in enumerate(pods, start=2):
        pod = _pod(number, row)
        reason = NOT_STARTED if pod is None else _unfit(pod, row["gpu_spec"], nodes)
        if pod is None or reason is not None:
            left_out[str(reason)] += 1
            continue
        with place(f"line {number}"):
            recorded.append(_openb_arrival(pod, row))
    if not recorded:
        raise Rejected("has no pod that could be run", hint="; ".join(map(str, counted(left_out))) or None)
    recorded.sort(key=lambda arrival: arrival.at_ms)
    first_ms = recorded[0].at_ms
    moved = tuple(arrival._replace(at_ms=arrival.at_ms - first_ms) for arrival in recorded)
    return Workload(trace_name(path), nodes, recorded=moved, left_out=counted(left_out))


def _node_list(path: Path) -> Path:
    found = sorted([*path.parent.glob("openb_node_list*.csv"), *path.parent.glob("openb_node_list*.csv.gz")])
    if not found:
        raise Rejected("has no list of nodes beside it", hint="put openb_node_list_all_node.csv there")
    return found[0]  # sorts before the list of GPU nodes only


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    reader = csv.DictReader(read_text(path).splitlines())
    for column in columns:
        if column not in (reader.fieldnames or ()):
            raise BadField(column, "there is no such column", f"its columns are {', '.join(columns)}")
    for row in reader:
        if None in row.values():
            raise BadField(f"line {reader.line_num}", "has too few columns", f"write {','.join(columns)}")
        yield row


def _groups(rows: Iterable[dict[str, str]]) -> tuple[NodeGroup, ...]:
    """Groups of equal nodes, in the order of their first row."""
    counts: Counter[tuple[int, int, int, str]] = Counter()
    for number, row in enumerate(rows, start=2):
        amounts = [_parse_integer(number, name, row[name]) for name in ("cpu_milli", "memory_mib", "gpu")]
        counts[amounts[0], amounts[1], amounts[2], row["model"]] += 1
    if not counts:
        raise Rejected("names no node", hint=f"write {','.join(NODE_COLUMNS)}, and a line for each")
    return tuple(
        NodeGroup(
            count,
            {CPU: cpu, MEMORY: memory * MIB, DISK: 0, GPU: gpu * WHOLE_GPU},
            {"gpu_model": model} if model else {},
        )
        for (cpu, memory, gpu, model), count in counts.items()
    )


class Pod(NamedTuple):
    """A row of the list, as numbers."""

    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    creation_time: int
    deletion_time: int
    scheduled_time: int

    @property
    def needs(self) -> dict[str, int]:
        return {CPU: self.cpu_milli, MEMORY: self.memory_mib * MIB, GPU: self.num_gpu * self.gpu_milli}

    @property
    def run_seconds(self) -> int:
        return self.deletion_time - self.scheduled_time


def _pod(number: int, row: Mapping[str, str]) -> Pod | None:
    """Parse a row; None if the pod never started."""
    if not row["scheduled_time"]:
        return None
    return Pod(**{name: _parse_integer(number, name, row[name]) for name in Pod._fields})


def _unfit(pod: Pod, models: str, nodes: tuple[NodeGroup, ...]) -> str | None:
    if pod.run_seconds < 0:
        return NO_RUN_TIME
    if not pod.cpu_milli:
        return NO_CPU
    allowed = [group for group in nodes if not models or group.labels.get("gpu_model") in models.split("|")]
    return None if any(group.holds(pod.needs) for group in allowed) else TOO_LARGE


def _openb_arrival(pod: Pod, row: Mapping[str, str]) -> Arrival:
    spec: dict[str, Any] = {
        "name": row["name"],
        "command": ["sleep", str(pod.run_seconds)],
        "cpu": pod.cpu_milli / 1000,
        "memory": pod.memory_mib * MIB,
        "gpu": pod.num_gpu * pod.gpu_milli / WHOLE_GPU,
    }
    if row["gpu_spec"]:
        spec["where"] = [f"gpu_model in {row['gpu_spec'].replace('|', ',')}"]
    parse_spec(spec)
    behaviour = as_recorded(pod.run_seconds, failed=row["pod_phase"] == "Failed")
    return Arrival(pod.creation_time * 1000, spec, behaviour)


def _parse_integer(number: int, column: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= WHOLE_MAX:
        hint = f"write a whole number from 0 to {WHOLE_MAX}"
        raise BadField(f"line {number}.{column}", f"'{text[:40]}' cannot be used", hint)
    return value
