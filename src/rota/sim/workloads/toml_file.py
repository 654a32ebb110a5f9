"""A file -> a Workload: TOML that describes nodes and job streams, or a recorded trace. [I/O]"""

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rota.apiserver.spec import fields
from rota.apiserver.spec.job import GPU_MAX, parse_spec
from rota.model import limits
from rota.model.amounts import (
    CPU,
    DISK,
    GPU,
    MEMORY,
    WHOLE_GPU,
    parse_count,
    parse_cpu,
    parse_seconds,
    parse_size,
    show_amount,
)
from rota.model.errors import BadField, Rejected
from rota.model.job import JobSpec
from rota.sim.workloads import openb, traces
from rota.sim.workloads.files import BadWorkload, place, read_text
from rota.sim.workloads.model import (
    Arrival,
    Behaviour,
    Elastic,
    JobStream,
    LoadKind,
    NodeGroup,
    Span,
    Workload,
    nodes_of,
)

__all__ = ["Arrival", "BadWorkload", "Behaviour", "NodeGroup", "Workload", "read"]

NODES_MAX = 1_000_000  # a hundred times the largest supported cluster: surely a typo
PER_HOUR_MAX = 10_000_000  # 2,800 per second: more than a control plane accepts
RUN_SECONDS_MIN = 0.001  # time is counted in milliseconds
P95_DEVIATIONS = 1.6448536269514722  # from the median to the 95th percentile of a normal distribution

FILE_FIELDS = ("name", "nodes", "cluster", "load")
NODE_FIELDS = ("count", "cpu", "memory", "disk", "gpu", "resources", "labels")
TIMES = {"make_seconds": 60.0, "idle_seconds": 60.0, "join_seconds": 600.0}  # of a [cluster]
CLUSTER_FIELDS = ("min", "max", *TIMES, *NODE_FIELDS[1:])
JOB_FIELDS = (  # fields of a job spec that are passed on unchanged
    *("command", "namespace", "parallel", "disk", "gpu", "resources", "where", "priority", "retries"),
    *("run", "recovery", "when_unschedulable", "labels", "env", "gang"),
)
LOAD_FIELDS = (
    *("name", "kind", "per_hour", "jobs", "jobs_max", "after_seconds", "hours", "count"),
    *("run_seconds", "cpu", "memory", "fail", "deaf", "timeout_seconds", "grace_seconds", *JOB_FIELDS),
)


def read(path: str | Path) -> Workload:
    """Read a .toml, an .swf or the .csv of openb's pods; raise BadWorkload if it cannot be used."""
    file = Path(path)
    kinds: dict[str, Callable[[Path], Workload]] = {
        ".toml": _read_toml,
        ".swf": traces.read_swf,
        ".csv": openb.read_openb,
    }
    ending = _ending(file)
    try:
        if ending not in kinds:
            hint = f"its name ends with {', '.join(kinds)}, or that and .gz"
            raise Rejected("is not a workload file", hint=hint)
        return kinds[ending](file)
    except Rejected as error:
        raise BadWorkload(file, error) from None


def is_log(path: str | Path) -> bool:
    """Whether the file is a log that has start and end of its jobs."""
    return _ending(Path(path)) == ".swf"


def _ending(file: Path) -> str:
    return file.with_suffix("").suffix if file.suffix == ".gz" else file.suffix


def _read_toml(path: Path) -> Workload:
    try:
        document = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise Rejected(f"is not TOML: {error}") from None
    return parse(document, path.name.partition(".")[0])


def parse(document: Mapping[str, Any], name: str) -> Workload:
    """Build the workload that a parsed TOML file describes."""
    fields.known_fields(document, FILE_FIELDS)
    elastic = _elastic(document) if "cluster" in document else None
    groups: list[NodeGroup] = [] if elastic is None else [nodes_of(elastic)]
    for number, table in enumerate(_node_tables(document), start=1):
        with place(f"nodes.{number}"):
            groups.append(_group(table))
    loads: list[JobStream] = []
    for number, table in enumerate(_tables(document, "load", "kind = 'poisson', per_hour = 60"), start=1):
        with place(f"load.{table.get('name', number)}"):
            loads.append(_load(table, number, groups))
    given = fields.name("name", document["name"]) if "name" in document else name
    return Workload(given, tuple(groups), tuple(loads), cluster=elastic)


def _elastic(document: Mapping[str, Any]) -> Elastic:
    if document.get("nodes"):
        raise BadField("cluster", "is not for a file with nodes", "leave out [[nodes]], or [cluster]")
    if not isinstance(document["cluster"], dict):
        hint = "write [cluster] and below it max = 20, cpu = 8, memory = '32g'"
        raise BadField("cluster", "is not a table", hint)
    with place("cluster"):
        table = fields.known_fields(document["cluster"], CLUSTER_FIELDS)
        group = _group({name: value for name, value in table.items() if name in NODE_FIELDS})
        if "max" not in table:
            raise BadField("max", "is missing", "write the most nodes it may have")
        most = fields.number("max", parse_count, table["max"], 1, limits.CLUSTER_NODES_MAX)
        least = fields.number("min", parse_count, table.get("min", 0), 0, most)
        make, idle, join = (
            _milliseconds(name, table.get(name, default)) / 1000 for name, default in TIMES.items()
        )
        return Elastic(group.capacity, most, least, group.labels, make, idle, join)


def _node_tables(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [] if "cluster" in document else _tables(document, "nodes", "cpu = 8, memory = '32g'")


def _tables(document: Mapping[str, Any], field: str, example: str) -> list[dict[str, Any]]:
    hint = f"write [[{field}]] and below it {example}"
    if not document.get(field):
        raise BadField(field, "is missing", hint)
    if not isinstance(document[field], list) or not all(isinstance(entry, dict) for entry in document[field]):
        raise BadField(field, "is not a list of tables", hint)
    return list(document[field])


def _group(table: dict[str, Any]) -> NodeGroup:
    document = fields.known_fields(table, NODE_FIELDS)
    for needed, example in ((CPU, "8"), (MEMORY, "'32g'")):
        if not document.get(needed):
            raise BadField(needed, "is missing", f"write how much a node has: {needed} = {example}")
    capacity = {
        CPU: fields.number(CPU, parse_cpu, document[CPU]),
        MEMORY: fields.number(MEMORY, parse_size, document[MEMORY]),
        DISK: fields.number(DISK, parse_size, document.get(DISK, 0)),
        GPU: WHOLE_GPU * fields.number(GPU, parse_count, document.get(GPU, 0), 0, GPU_MAX),
        **_resources(document.get("resources", {})),
    }
    count = fields.number("count", parse_count, document.get("count", 1), 1, NODES_MAX)
    return NodeGroup(count, capacity, fields.labels("labels", document.get("labels", {})))


def _resources(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise BadField("resources", "is not a table", "write { licence = 3 }")
    return {
        name: fields.number(f"resources.{name}", parse_count, amount, 0, limits.AMOUNT_MAX)
        for name, amount in value.items()
    }


def _load(table: dict[str, Any], number: int, groups: list[NodeGroup]) -> JobStream:
    document = fields.known_fields(table, LOAD_FIELDS)
    behaviour = _behaviour(document)
    load = JobStream(
        spec=_shared(document, number, behaviour),
        kind=fields.one_of("kind", document.get("kind", LoadKind.POISSON), LoadKind),
        per_hour=_per_hour(document.get("per_hour")),
        behaviour=behaviour,
        jobs=fields.number("jobs", parse_count, document.get("jobs", 1), 1, limits.JOBS_WAITING_MAX),
        jobs_max=_jobs_max(document.get("jobs_max")),
        after_ms=_milliseconds("after_seconds", document.get("after_seconds", 0)),
        hours=_hours(document.get("hours")),
        count=_span("count", document.get("count", 1), _tasks),
        cpu_milli=_span(CPU, document.get(CPU, 1), parse_cpu),
        memory_bytes=_span(MEMORY, document.get(MEMORY, 0), parse_size),
    )
    if "jobs" in document and load.kind is not LoadKind.BURST:
        raise BadField("jobs", f"is not for kind {load.kind}", "write kind = 'burst', or leave jobs out")
    _check_specs(load, groups)
    return load


def _shared(document: Mapping[str, Any], number: int, behaviour: Behaviour) -> dict[str, Any]:
    """What all jobs of a load have in common, as the body of a submit."""
    spec = {
        "name": fields.name("name", document.get("name", f"load-{number}")),
        "command": ["sleep", str(behaviour.median_ms / 1000)],
        **{field: document[field] for field in JOB_FIELDS if field in document},
    }
    for field, most in (("timeout", limits.TIMEOUT_SECONDS_MAX), ("grace", limits.GRACE_SECONDS_MAX)):
        written = f"{field}_seconds"
        if written in document:
            spec[field] = fields.number(written, parse_seconds, document[written], most)
    return spec


def _behaviour(document: Mapping[str, Any]) -> Behaviour:
    if "run_seconds" not in document:
        raise BadField("run_seconds", "is missing", _RUN_HINT)
    median_ms, sigma = _run(document["run_seconds"])
    return Behaviour(
        median_ms, sigma, _share("fail", document.get("fail", 0.0)), _share("deaf", document.get("deaf", 0.0))
    )


_RUN_HINT = "write 20, or { median = 20, p95 = 120 }"


def _run(value: object) -> tuple[int, float]:
    """Median and sigma of the lognormal distribution that has these two percentiles."""
    if not isinstance(value, dict):
        return _run_ms("run_seconds", value), 0.0
    if sorted(value) != ["median", "p95"]:
        raise BadField("run_seconds", "is not a median and a p95", _RUN_HINT)
    median_ms, p95_ms = (_run_ms(f"run_seconds.{name}", value[name]) for name in ("median", "p95"))
    if p95_ms < median_ms:
        raise BadField("run_seconds.p95", "is below the median", "write at least the median")
    return median_ms, math.log(p95_ms / median_ms) / P95_DEVIATIONS


def _run_ms(field: str, value: object) -> int:
    milliseconds = _milliseconds(field, value)
    if not milliseconds:
        raise BadField(field, "is not a run time", f"write at least {RUN_SECONDS_MIN}")
    return milliseconds


def _milliseconds(field: str, value: object) -> int:
    return round(fields.number(field, parse_seconds, value, limits.TIMEOUT_SECONDS_MAX) * 1000)


def _share(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadField(field, "is not a share of the tasks", "write a number from 0 to 1")
    return float(value)


def _per_hour(value: object) -> float:
    hint = f"write how many come in an hour: a number above 0, at most {PER_HOUR_MAX}"
    if value is None:
        raise BadField("per_hour", "is missing", hint)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= PER_HOUR_MAX:
        raise BadField("per_hour", "is not a rate", hint)
    return float(value)


def _hours(value: object) -> tuple[float, float] | None:
    """Two hours of the day; the span crosses midnight if the second is smaller."""
    if value is None:
        return None
    ends = value if isinstance(value, list) else []
    numbers = [end for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
    if len(numbers) != len(ends) or len(ends) != 2 or numbers[0] == numbers[1]:
        raise BadField("hours", "are not two hours of the day", "write [8, 18], or [22, 6]")
    if not all(0 <= hour <= 24 for hour in numbers):
        raise BadField("hours", "are not hours of a day", "write numbers from 0 to 24")
    return float(numbers[0]), float(numbers[1])


def _jobs_max(value: object) -> int | None:
    return None if value is None else fields.number("jobs_max", parse_count, value, 1, limits.COUNT_MAX)


def _tasks(field: str, value: object) -> int:
    return parse_count(field, value, 1, limits.COUNT_MAX)


def _span(field: str, value: object, parse: Callable[[str, object], int]) -> Span:
    """A fixed number, or a uniform span of two."""
    ends = value if isinstance(value, list) else [value, value]
    hint = "write one value, or two in brackets, the smaller first: [1, 20]"
    if len(ends) != 2:
        raise BadField(field, f"has {len(ends)} values", hint)
    span = Span(*(fields.number(field, parse, end) for end in ends))
    if span.low > span.high:
        raise BadField(field, "begins above its end", hint)
    return span


def _check_specs(load: JobStream, groups: list[NodeGroup]) -> None:
    """The smallest and the largest job would be admitted, and the largest fits on an empty node."""
    _parsed(load, (load.count.low, load.cpu_milli.low, load.memory_bytes.low))
    needs = _parsed(load, (load.count.high, load.cpu_milli.high, load.memory_bytes.high)).needs
    if any(group.holds(needs) for group in groups):
        return
    for name, amount in needs.items():
        most = max(group.capacity.get(name, 0) for group in groups)
        if amount > most:
            problem = f"{show_amount(name, amount)} is more than any node has"
            raise BadField(name, problem, f"the largest has {show_amount(name, most)}")
    together = " and ".join(show_amount(name, amount) for name, amount in needs.items())
    raise BadField(CPU, f"no node has {together} at once", "ask for less, or add larger [[nodes]]")


def _parsed(load: JobStream, amounts: tuple[float, float, float]) -> JobSpec:
    count, cpu_milli, memory = amounts
    return parse_spec({**load.spec, "count": int(count), "cpu": cpu_milli / 1000, "memory": int(memory)})
