"""The body of a submit -> a JobSpec that has no id yet.

Each field is parsed by itself first; rules about several fields are checked on the finished spec. Nothing
here depends on the cluster: a body is accepted or refused in the same way on every server.
"""

import re
from collections.abc import Mapping
from typing import Any

from rota.apiserver.spec import fields, placement
from rota.apiserver.spec.consistency import check_consistency
from rota.apiserver.spec.container import check_container, check_sandbox, parse_container, parse_sandbox
from rota.apiserver.spec.fields import parse_deadline
from rota.apiserver.spec.placement import LABEL_SHORTHANDS, parse_dependencies
from rota.apiserver.spec.quantities import parse_task_limits
from rota.apiserver.spec.recovery import parse_recovery, parse_retries, parse_run_mode
from rota.apiserver.spec.service import check_service, parse_service_fields
from rota.apiserver.spec.steps import check_exec_size, parse_command, parse_files, parse_steps
from rota.model import limits
from rota.model.amounts import (
    CPU,
    DISK,
    GPU,
    MEMORY,
    parse_count,
    parse_cpu,
    parse_gpu,
    parse_seconds,
    parse_size,
)
from rota.model.errors import BadField
from rota.model.ids import JobId
from rota.model.job import JobKind, JobSpec, Unschedulable
from rota.model.result import Reporter
from rota.model.shape import Constraint, Op, Policy
from rota.model.steps import Step

GPU_MAX = limits.GPUS_MAX  # of one task: it runs on one node
SPEC_ATTRIBUTES: dict[str, tuple[str, ...]] = {  # field of a submit -> attributes of JobSpec it sets
    "name": ("name",),
    "namespace": ("namespace",),
    "command": ("command", "steps"),
    "env": ("env",),
    "workdir": ("workdir",),
    "count": ("size",),
    "parallel": ("parallel",),
    "cpu": ("needs",),
    "memory": ("needs",),
    "disk": ("needs",),
    "gpu": ("needs",),
    "resources": ("needs",),
    "where": ("where",),
    "priority": ("priority",),
    "retries": ("retries",),
    "timeout": ("timeout_seconds",),
    "grace": ("grace_seconds",),
    "run": ("run", "lease_seconds", "lease_margin_seconds"),
    "when_unschedulable": ("when_unschedulable",),
    "recovery": ("recovery", "controller", "when_no_controller", "controller_wait_seconds"),
    "labels": ("labels",),
    "region": ("where",),
    "on": ("where",),
    "gpu_model": ("where",),
    "prefer": ("prefer",),
    "near": ("near",),
    "apart": ("apart",),
    "spread": ("spread",),
    "tolerate": ("tolerate",),
    "gang": ("gang",),
    "policy": ("policy",),
    "noise": ("noise",),
    "preemptible": ("preemptible",),
    "evict_at_most": ("evict_at_most",),
    "expect": ("expect_seconds",),
    "deadline": ("deadline_at_ms",),
    "log_bytes": ("log_bytes",),
    "limits": ("limits",),
    "steps": ("command", "steps"),
    "files": ("files",),
    "image": ("container",),
    "container": ("container",),
    "after": ("after",),
    "kind": ("kind",),
    "stop_signal": ("stop_signal",),
    "restart": ("restart",),
    "check": ("check",),
    "sandbox": ("sandbox",),
    "rollout": ("rollout",),
    "results": ("results",),
    "lease": ("lease_seconds",),
    "lease_margin": ("lease_margin_seconds",),
    "retry": ("retries", "retry"),
    "retry_on": ("retry",),
    "fail_on": ("retry",),
    "queue_timeout": ("queue_timeout_seconds",),
    "controller": ("controller",),
    "when_no_controller": ("when_no_controller",),
    "controller_wait": ("controller_wait_seconds",),
    "keep": ("keep_seconds",),
    "cluster": ("cluster",),
    "move_pending": ("move_pending",),
}
SPEC_FIELDS = tuple(SPEC_ATTRIBUTES)
BUILT_IN_RESOURCES = (CPU, MEMORY, DISK, GPU)

# Fields that have no meaning for a job with one task on every node, and what to do instead.
_REFUSED_FOR_SYSTEM = {
    "count": "it has a task on every node that fits; choose nodes with where",
    "parallel": "all its tasks run at once",
    "gang": "its tasks come and go with the nodes",
    "spread": "it is on every node anyway",
    "near": "it is on every node anyway; choose nodes with where",
    "apart": "it is on every node anyway; choose nodes with where",
    "retries": "it is started again however it ends",
    "deadline": "it has no end",
    "recovery": "its tasks stay on their nodes",
    "when_unschedulable": "it waits for nodes to come",
}
_SYSTEM_DEFAULTS: dict[str, tuple[object, ...]] = {
    "gang": (False,),
    "retries": (0,),
    "when_unschedulable": ("queue",),
    "recovery": ("scheduler",),
}


def parse_spec(body: object, wall_ms: int = 0) -> JobSpec:
    """The spec of a submit; a deadline such as `2h` is counted from `wall_ms`."""
    body = fields.known_fields(body, SPEC_FIELDS)
    spec = parse_fields(body, wall_ms)
    check_spec(spec, wall_ms)
    check_service(body, spec)
    return spec


def named_resources(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The resources that the body mentions, even with an amount of 0."""
    return (*(resource for resource in BUILT_IN_RESOURCES if resource in body), *body.get("resources", ()))


def check_spec(spec: JobSpec, wall_ms: int) -> None:
    """Check the rules that involve several fields."""
    check_consistency(spec, wall_ms)
    check_exec_size(spec)
    check_container(spec)
    check_sandbox(spec)


def parse_fields(body: Mapping[str, Any], wall_ms: int) -> JobSpec:
    """Parse every field by itself, without the rules that involve several."""
    command, steps = _parse_commands(body)
    workdir = _parse_workdir(body.get("workdir"))
    kind = parse_kind(body)
    count = 0 if kind is JobKind.SYSTEM else _parse_count(body)
    return JobSpec(
        id=JobId(""),
        name=_parse_name(body, command or steps[0].command),
        command=command,
        steps=steps,
        submitted_at_ms=0,
        namespace=fields.name("namespace", body.get("namespace", "default")),
        env=fields.environment("env", body.get("env", {})),
        workdir=workdir,
        files=parse_files(body.get("files"), workdir),
        count=count,
        parallel=_parse_parallel(body.get("parallel")),
        needs=_parse_needs(body),
        where=_parse_where(body),
        priority=fields.number("priority", parse_count, body.get("priority", 50), 0, limits.PRIORITY_MAX),
        **parse_retries(body),
        timeout_seconds=_parse_duration("timeout", body.get("timeout")),
        queue_timeout_seconds=_parse_duration("queue_timeout", body.get("queue_timeout")),
        grace_seconds=fields.number(
            "grace", parse_seconds, body.get("grace", 10.0), limits.GRACE_SECONDS_MAX
        ),
        **parse_run_mode(body),
        **parse_recovery(body),
        when_unschedulable=fields.one_of(
            "when_unschedulable", body.get("when_unschedulable", Unschedulable.QUEUE), Unschedulable
        ),
        labels=fields.labels("labels", body.get("labels", {})),
        **_parse_placement(body),
        **_parse_eviction(body),
        expect_seconds=_parse_duration("expect", body.get("expect")),
        log_bytes=_parse_log_bytes(body.get("log_bytes")),
        deadline_at_ms=None
        if body.get("deadline") is None
        else parse_deadline("deadline", body["deadline"], wall_ms),
        container=parse_container(body),
        keep_seconds=_parse_keep(body.get("keep")),
        move_pending=fields.flag("move_pending", body.get("move_pending", True)),
        cluster=None if body.get("cluster") is None else fields.name("cluster", body["cluster"]),
        sandbox=parse_sandbox(body.get("sandbox")),
        limits=parse_task_limits("limits", body.get("limits", {})),
        kind=kind,
        results=_parse_results(body.get("results", False)),
        after=parse_dependencies("after", body.get("after", [])),
        **parse_service_fields(body),
    )


def _parse_results(value: object) -> bool | Reporter:
    if isinstance(value, bool):
        return value
    if value != Reporter.AGENT:
        hint = 'write true, where tasks report themselves, or "agent", where the node\'s agent does'
        raise BadField("results", f"{str(value)[:40]!r} is no reporter", hint)
    return Reporter.AGENT


def _parse_count(body: Mapping[str, Any]) -> int:
    return fields.number("count", parse_count, body.get("count", 1), 1, limits.COUNT_MAX)


def _parse_where(body: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """The constraints of `where`, and those of the fields that are short for one."""
    shorthands = tuple(
        Constraint(label, Op.EQUAL, (fields.label_value(field, body[field]),))
        for field, label in LABEL_SHORTHANDS.items()
        if body.get(field) is not None
    )
    return (*placement.parse_constraints("where", body.get("where", [])), *shorthands)


def _parse_placement(body: Mapping[str, Any]) -> dict[str, Any]:
    """Preferences, affinity, spread, tolerations, and how its tasks are placed together."""
    return {
        "prefer": placement.parse_preferences("prefer", body.get("prefer", [])),
        "near": placement.parse_affinity_terms("near", body.get("near", [])),
        "apart": placement.parse_affinity_terms("apart", body.get("apart", [])),
        "spread": placement.parse_spreads("spread", body.get("spread", [])),
        "tolerate": placement.parse_tolerations("tolerate", body.get("tolerate", [])),
        "gang": fields.flag("gang", body.get("gang", False)),
        "policy": fields.one_of("policy", body.get("policy", Policy.SPREAD), Policy),
        "noise": None if body.get("noise") is None else fields.name("noise", body["noise"]),
    }


def _parse_eviction(body: Mapping[str, Any]) -> dict[str, Any]:
    limit = body.get("evict_at_most")
    if limit is not None:
        limit = fields.number("evict_at_most", parse_count, limit, 0, limits.COUNT_MAX)
    return {"preemptible": fields.flag("preemptible", body.get("preemptible", True)), "evict_at_most": limit}


def _parse_commands(body: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    """The command and no steps, or the steps and no command."""
    if body.get("steps") is None:
        return parse_command("command", body.get("command")), ()
    if body.get("command") is not None:
        raise BadField("steps", "conflicts with command", "leave one of the two out")
    return (), parse_steps(body["steps"])


def _parse_name(body: Mapping[str, Any], command: tuple[str, ...]) -> str:
    if body.get("name") is None:
        basename = command[0].rstrip("/").rpartition("/")[2]
        derived = re.sub(r"[^A-Za-z0-9._-]+", "-", basename).strip("._-")[: limits.NAME_LENGTH_MAX]
        return f"job-{derived}".rstrip("-")[: limits.NAME_LENGTH_MAX] if _looks_like_id(derived) else derived
    given = fields.name("name", body["name"])
    if _looks_like_id(given):
        raise BadField("name", f"'{given}' would be taken for a job's id", "write at least one letter")
    return given


def _looks_like_id(name: str) -> bool:
    return not name or name.isdecimal() or name == "last"


def _parse_workdir(value: object) -> str | None:
    return None if value is None else fields.path("workdir", value)


def _parse_parallel(value: object) -> int | None:
    return None if value is None else fields.number("parallel", parse_count, value, 1, limits.COUNT_MAX)


def _parse_duration(field: str, value: object) -> float | None:
    return None if value is None else fields.positive_seconds(field, value)


def _parse_keep(value: object) -> float | None:
    return None if value is None else fields.number("keep", parse_seconds, value, limits.KEEP_SECONDS_MAX)


def _parse_log_bytes(value: object) -> int | None:
    if value is None:
        return None
    size = fields.number("log_bytes", parse_size, value)
    if size < limits.LOG_BYTES_MIN:
        raise BadField("log_bytes", f"{size} bytes are too few", "write at least 64k, or leave it out")
    return size


def _parse_needs(body: Mapping[str, Any]) -> dict[str, int]:
    cpu = fields.number("cpu", parse_cpu, body.get("cpu", 1))
    if cpu == 0:
        # A task that needs nothing fits on every node any number of times.
        raise BadField("cpu", "0 cores would let any number run at once", "write at least 0.001")
    needs = {
        CPU: cpu,
        MEMORY: fields.number("memory", parse_size, body.get("memory", 0)),
        DISK: fields.number("disk", parse_size, body.get("disk", 0)),
        GPU: fields.number("gpu", parse_gpu, body.get("gpu", 0), GPU_MAX),
        **_parse_resources(body.get("resources", {})),
    }
    return {resource: amount for resource, amount in needs.items() if amount}


def _parse_resources(value: object) -> dict[str, int]:
    hint = 'write {"licence": 1}'
    if not isinstance(value, dict):
        raise BadField("resources", "is not an object", hint)
    if len(value) > limits.RESOURCES_MAX:
        raise BadField("resources", f"has {len(value)} entries", f"write at most {limits.RESOURCES_MAX}")
    for resource in value:
        if resource in BUILT_IN_RESOURCES:
            raise BadField("resources", f"{resource} has a field of its own", f"write it as {resource}")
        fields.resource("resources", resource)
    return {
        resource: fields.number(f"resources.{resource}", parse_count, amount, 0, limits.AMOUNT_MAX)
        for resource, amount in sorted(value.items())
    }


def parse_kind(body: Mapping[str, Any]) -> JobKind:
    kind = fields.one_of("kind", body.get("kind", JobKind.BATCH), JobKind)
    if kind is JobKind.SYSTEM:
        for field, instead in _REFUSED_FOR_SYSTEM.items():
            given = _given_retries(body) if field == "retries" else body.get(field)
            if given not in (None, [], *_SYSTEM_DEFAULTS.get(field, ())):
                raise BadField(field, "does not go with kind = system", f"leave it out: {instead}")
        if body.get("run", "at_least_once") != "at_least_once":
            raise BadField("run", "a system job is started again and again", "write at_least_once")
    return kind


def _given_retries(body: Mapping[str, Any]) -> object:
    """The number of retries, from either of the two fields that set it."""
    table = body.get("retry")
    return body.get("retries") or (table.get("attempts") if isinstance(table, dict) else None)
