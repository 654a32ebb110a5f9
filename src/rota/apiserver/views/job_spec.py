"""The spec of a job as JSON, such that it could be submitted again; its needs, placement and versions."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from rota.apiserver import access
from rota.apiserver.access import Action, Caller
from rota.apiserver.spec.quantities import quantities_json
from rota.apiserver.spec.service import check_json, restart_json, rollout_policy_json, signal_name
from rota.engine.state.entries import JobEntry
from rota.engine.state.mirror import Mirror
from rota.model.amounts import WHOLE_GPU, format_utc
from rota.model.attempt import AttemptBlock
from rota.model.columns import column
from rota.model.container import ContainerSpec, SandboxSpec
from rota.model.ids import NodeId
from rota.model.job import JobSpec, NeedOrigin, with_observed_needs
from rota.model.recovery import PLAIN, Retry
from rota.model.service import SIGTERM
from rota.model.shape import Policy
from rota.model.steps import Step
from rota.rules.phases import Phase

Json = dict[str, Any]

BLOCKS_SCANNED_MAX = 256  # in the search for the last placement, newest first: large jobs have many more


def readable_spec(spec: JobSpec, caller: Caller, namespace: str) -> JobSpec:
    """The spec as the caller may read it: environment values are hidden unless it may submit there."""
    if access.is_allowed(caller, Action.READ_ENVIRONMENTS, namespace):
        return spec
    steps = tuple(msgspec.structs.replace(step, env=access.redacted(step.env)) for step in spec.steps)
    return msgspec.structs.replace(spec, env=access.redacted(spec.env), steps=steps)


def spec_json(spec: JobSpec) -> Json:
    """The whole spec. Security: pass it through `readable_spec` before it is shown to a caller."""
    custom = dict(spec.needs)
    return {
        "name": spec.name,
        "namespace": spec.namespace,
        "command": spec.command or None,
        "env": spec.env,
        "workdir": spec.workdir,
        "count": spec.size,
        "parallel": spec.parallel,
        "cpu": custom.pop("cpu", 0) / 1000,
        "memory": custom.pop("memory", 0),
        "disk": custom.pop("disk", 0),
        "gpu": gpu_count(custom.pop("gpu", 0)),
        "resources": custom,
        "where": [str(constraint) for constraint in spec.where],
        "priority": spec.priority,
        "retries": spec.retries,
        "timeout": spec.timeout_seconds,
        "grace": spec.grace_seconds,
        "run": spec.run.value,
        "when_unschedulable": spec.when_unschedulable.value,
        "recovery": spec.recovery.value,
        **({} if spec.recovery_controller is None else _controller_fields(spec)),
        "labels": spec.labels,
        **({"steps": [_step_json(step) for step in spec.steps]} if spec.steps else {}),
        **({"files": {path: len(content) for path, content in spec.files.items()}} if spec.files else {}),
        **dict(_optional_fields(spec)),
        **({} if spec.container is None else _container_json(spec.container)),
        **({} if spec.sandbox is None else {"sandbox": _sandbox_json(spec.sandbox)}),
        **({"limits": _limits_json(spec.limits)} if spec.limits else {}),
        **dict(_kind_fields(spec)),
    }


def needs_json(spec: JobSpec) -> Json:
    """By resource: what is reserved for a task, its expected use, and the source of that amount."""
    expected = with_observed_needs(spec).needs
    return {
        resource: {
            "reserved": quantities_json({resource: spec.needs.get(resource, 0)})[resource],
            "assessed": quantities_json({resource: expected.get(resource, 0)})[resource],
            "origin": (NeedOrigin.OBSERVED if resource in spec.observed else origin).value,
        }
        for resource, origin in spec.origins.items()
    }


def _controller_fields(spec: JobSpec) -> Json:
    return {
        "controller": spec.controller,
        "when_no_controller": spec.when_no_controller.value,
        "controller_wait": spec.controller_wait_seconds,
    }


def _kind_fields(spec: JobSpec) -> Iterator[tuple[str, Any]]:
    yield "kind", spec.kind.value
    if spec.stop_signal != SIGTERM:
        yield "stop_signal", signal_name(spec.stop_signal)
    if spec.is_service:
        yield "restart", restart_json(spec.restart)
        yield "rollout", rollout_policy_json(spec.rollout)
    if spec.check is not None:
        yield "check", check_json(spec.check)


def _limits_json(limits: dict[str, int]) -> Json:
    return limits | ({"cpu": limits["cpu"] / 1000} if "cpu" in limits else {})


def _optional_fields(spec: JobSpec) -> Iterator[tuple[str, Any]]:
    """Optional fields that are set."""
    texts = {
        "prefer": spec.prefer,
        "near": spec.near,
        "apart": spec.apart,
        "spread": spec.spread,
        "tolerate": spec.tolerate,
    }
    yield from ((name, [str(term) for term in terms]) for name, terms in texts.items() if terms)
    if spec.after:
        yield "after", [{"job": dependency.job, "on": dependency.on.value} for dependency in spec.after]
    if spec.gang:
        yield "gang", True
    if spec.policy is not Policy.SPREAD:
        yield "policy", spec.policy.value
    permissions = {"preemptible": spec.preemptible, "move_pending": spec.move_pending}
    yield from ((name, False) for name, allowed in permissions.items() if not allowed)
    plain = {
        "rerun_of": spec.rerun_of or None,
        "noise": spec.noise,
        "evict_at_most": spec.evict_at_most,
        "expect": spec.expect_seconds,
        "queue_timeout": spec.queue_timeout_seconds,
        "log_bytes": spec.log_bytes,
        "lease": spec.lease_seconds,
        "lease_margin": spec.lease_margin_seconds,
        "keep": spec.keep_seconds,
        "cluster": spec.cluster,
        "results": spec.results or None,
    }
    yield from ((name, value) for name, value in plain.items() if value is not None)
    if spec.retry != PLAIN:
        yield "retry", _retry_json(spec.retry)
    if spec.deadline_at_ms is not None:
        yield "deadline", format_utc(spec.deadline_at_ms)


def _retry_json(retry: Retry) -> Json:
    """The table `retry` without the number of retries, which has a field of its own."""
    lists = {"on": [*retry.codes, *retry.on], "fail_on": list(retry.fail_on)}
    return {name: entries for name, entries in lists.items() if entries} | {
        "delay": retry.delay_ms / 1000,
        "delay_max": retry.delay_max_ms / 1000,
        "jitter": retry.jitter_percent / 100,
    }


def _step_json(step: Step) -> Json:
    shown: Json = {"name": step.name, "command": step.command}
    if step.env:
        shown["env"] = step.env
    if step.timeout_seconds is not None:
        shown["timeout"] = step.timeout_seconds
    return shown


def _sandbox_json(sandbox: SandboxSpec) -> Json:
    return {"network": sandbox.network, "writable": list(sandbox.writable)}


def _container_json(container: ContainerSpec) -> Json:
    mounts = [
        {"source": mount.source, "target": mount.target, "read_only": mount.read_only}
        for mount in container.mounts
    ]
    settings = {
        "user": container.user,
        "network": container.network.value,
        "mounts": mounts,
        "workdir": container.workdir,
        "pull": container.pull.value,
    }
    return {"image": container.image, "container": settings}


def placement_json(mirror: Mirror, entry: JobEntry) -> Json | None:
    """The last placement: the chosen node, the runner-up, and the scores of both."""
    newest = islice(reversed(entry.attempts.values()), BLOCKS_SCANNED_MAX)
    block = max((attempts for attempts in newest if attempts.choice), key=_placed_at_ms, default=None)
    if block is None or block.choice is None:
        return None
    choice = block.choice
    runner_up = choice.runner_up
    return {
        "why": choice.why,
        "node": node_name(mirror, choice.chosen),
        "points": choice.points,
        "fitting": choice.fitting,
        "runner_up": None if runner_up is None else node_name(mirror, runner_up),
        "runner_up_points": None if runner_up is None else choice.runner_up_points,
        "at_ms": _placed_at_ms(block),
    }


def running_versions(entry: JobEntry) -> dict[str, int]:
    """Number of running tasks by version of the spec."""
    found: dict[int, int] = {}
    for block, status in entry.statuses.items():
        for position, phase in enumerate(entry.phases[block]):
            if phase == Phase.RUNNING:
                version = status.versions.get(position, 1)
                found[version] = found.get(version, 0) + 1
    return {str(version): found[version] for version in sorted(found)}


def node_name(mirror: Mirror, node_id: NodeId) -> str:
    entry = mirror.nodes.get(node_id)
    return entry.spec.name if entry else node_id


def gpu_count(thousandths: int) -> float:
    """Thousandths of GPUs as shown to users: 2, or 0.5."""
    devices, part = divmod(thousandths, WHOLE_GPU)
    return thousandths / WHOLE_GPU if part else devices


def _placed_at_ms(block: AttemptBlock) -> int:
    return int(column(block, "placed_at_ms").max())
