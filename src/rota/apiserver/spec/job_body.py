"""A JobSpec -> the body of a submit with the same meaning; and such a body with a patch applied.

An update is parse(patch(body of the old spec)): so a patch is checked by the same rules as a submit.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from rota.apiserver.spec.placement import LABEL_SHORTHANDS
from rota.apiserver.spec.recovery import RETRY_FIELDS, RETRY_SHORTHANDS, parse_retries
from rota.apiserver.spec.service import check_json, restart_json, rollout_policy_json, signal_name
from rota.model.amounts import CPU, DISK, GPU, MEMORY, WHOLE_GPU
from rota.model.container import ContainerSpec
from rota.model.job import JobKind, JobSpec, Recovery
from rota.model.recovery import PLAIN, Retry
from rota.model.service import SIGTERM
from rota.model.shape import Op, RunMode
from rota.model.steps import Step

Body = dict[str, Any]
# Tables that a patch changes entry by entry.
MERGED_TABLES = (
    "env",
    "labels",
    "limits",
    "resources",
    "files",
    "rollout",
    "retry",
)
_SAME_NAME_FIELDS = (
    *("workdir", "parallel", "priority", "gang", "noise", "preemptible", "evict_at_most"),
    *("log_bytes", "results", "move_pending"),
)
_RENAMED_FIELDS = {
    "timeout": "timeout_seconds",
    "queue_timeout": "queue_timeout_seconds",
    "grace": "grace_seconds",
    "expect": "expect_seconds",
    "keep": "keep_seconds",
    "lease": "lease_seconds",
    "lease_margin": "lease_margin_seconds",
}
_ENUM_FIELDS = ("kind", "run", "when_unschedulable", "recovery", "policy")
_TEXT_LIST_FIELDS = ("where", "prefer", "near", "apart", "spread", "tolerate")
# Fields that are valid only with one value of another field: a patch of that field drops them.
_LEASE_FIELDS = ("lease", "lease_margin")
_CONTROLLER_FIELDS = ("controller", "when_no_controller", "controller_wait")


def spec_to_body(spec: JobSpec) -> Body:
    """The body that would have to be submitted for this spec.

    Fields that no update may change are left out, except for the kind. So is the deadline: it may have
    passed by now, and would be refused.
    """
    found: Body = {name: getattr(spec, name) for name in _SAME_NAME_FIELDS}
    found |= {field: getattr(spec, name) for field, name in _RENAMED_FIELDS.items()}
    found |= {name: getattr(spec, name).value for name in _ENUM_FIELDS}
    found |= {name: [str(entry) for entry in getattr(spec, name)] for name in _TEXT_LIST_FIELDS}
    found |= {"env": dict(spec.env), "labels": dict(spec.labels), "command": list(spec.command) or None}
    found |= {"steps": [_step(step) for step in spec.steps] or None}
    found |= {"files": {path: {"base64": b64encode(data).decode()} for path, data in spec.files.items()}}
    found |= {"count": None if spec.kind is JobKind.SYSTEM else spec.size, "retry": _retry(spec)}
    found |= {"stop_signal": None if spec.stop_signal == SIGTERM else signal_name(spec.stop_signal)}
    found |= {**_needs(spec), "limits": _limits(spec.limits), **_container(spec.container)}
    if spec.sandbox is not None:
        found["sandbox"] = {"network": spec.sandbox.network, "writable": list(spec.sandbox.writable)}
    if spec.recovery is Recovery.CONTROLLER:
        wait = spec.controller_wait_seconds
        found |= {"controller": spec.controller, "controller_wait": wait}
        found |= {"when_no_controller": spec.when_no_controller.value}
    if spec.is_service:
        found |= {
            "restart": restart_json(spec.restart),
            "rollout": rollout_policy_json(spec.rollout),
        }
        found |= {"check": None if spec.check is None else check_json(spec.check)}
    return {field: value for field, value in found.items() if value is not None}


def patched_body(spec: JobSpec, patch: Mapping[str, Any]) -> Body:
    """The body of a spec with a patch applied: null resets a field; a merged table keeps other entries."""
    # The short forms are expanded below: check them first, so that errors name the fields of the patch.
    parse_retries({field: value for field, value in patch.items() if value is not None})
    body = spec_to_body(spec)
    _drop_dependent(body, patch)
    for field, label in LABEL_SHORTHANDS.items():
        if field in patch and "where" not in patch:
            others = [term for term in spec.where if term.label != label or term.op is not Op.EQUAL]
            body["where"] = [str(term) for term in others]
    for field, value in _expand_shorthands(patch).items():
        if field in MERGED_TABLES and isinstance(value, dict):
            body[field] = {
                name: entry for name, entry in (body.get(field, {}) | value).items() if entry is not None
            }
        else:
            body[field] = value
    return {field: value for field, value in body.items() if value is not None}


def _drop_dependent(body: Body, patch: Mapping[str, Any]) -> None:
    dropped: list[str] = []
    if "run" in patch and patch["run"] != RunMode.ONE_AT_A_TIME:
        dropped += _LEASE_FIELDS
    if "recovery" in patch and patch["recovery"] != Recovery.CONTROLLER:
        dropped += _CONTROLLER_FIELDS
    if patch.get("image", "") is None:
        dropped.append("container")
    dropped += ["steps"] if patch.get("command") is not None else []
    dropped += ["command"] if patch.get("steps") is not None else []
    for field in dropped:
        body.pop(field, None)


def _expand_shorthands(patch: Mapping[str, Any]) -> Body:
    """The patch with the short forms of retry entries moved into the table `retry`."""
    short = {name: patch[field] for name, field in RETRY_SHORTHANDS.items() if field in patch}
    found = {field: value for field, value in patch.items() if field not in RETRY_SHORTHANDS.values()}
    if not short:
        return found
    table = patch.get("retry")
    if "retry" in patch and table is None:  # the table is reset, except for the short forms given
        table = dict.fromkeys(RETRY_FIELDS)
    return found | {"retry": (table or {}) | short}


def _needs(spec: JobSpec) -> Body:
    custom = dict(spec.needs)
    gpus = custom.pop(GPU, 0)
    return {
        CPU: custom.pop(CPU, 0) / 1000 or None,
        MEMORY: custom.pop(MEMORY, 0),
        DISK: custom.pop(DISK, 0),
        GPU: gpus / WHOLE_GPU if gpus % WHOLE_GPU else gpus // WHOLE_GPU,
        "resources": custom,
    }


def _limits(limits: Mapping[str, int]) -> Body:
    return {name: amount / 1000 if name == CPU else amount for name, amount in limits.items()}


def _retry(spec: JobSpec) -> Body:
    retry: Retry = spec.retry
    lists = {"attempts": spec.retries, "on": [*retry.codes, *retry.on], "fail_on": list(retry.fail_on)}
    found = {name: value for name, value in lists.items() if value}
    delays = {"delay_ms": retry.delay_ms, "delay_max_ms": retry.delay_max_ms}
    if delays == {"delay_ms": PLAIN.delay_ms, "delay_max_ms": PLAIN.delay_max_ms}:
        delays = {}
    found |= {name.removesuffix("_ms"): ms / 1000 for name, ms in delays.items()}
    if retry.jitter_percent != PLAIN.jitter_percent:
        found["jitter"] = retry.jitter_percent / 100
    return found


def _step(step: Step) -> Body:
    body: Body = {"name": step.name, "command": list(step.command), "env": dict(step.env)}
    return body | ({} if step.timeout_seconds is None else {"timeout": step.timeout_seconds})


def _container(container: ContainerSpec | None) -> Body:
    if container is None:
        return {}
    table: Body = {
        "user": container.user,
        "network": container.network.value,
        "mounts": [
            {"source": mount.source, "target": mount.target, "read_only": mount.read_only}
            for mount in container.mounts
        ],
        "workdir": container.workdir,
        "pull": container.pull.value,
    }
    return {"image": container.image, "container": {name: value for name, value in table.items() if value}}
