"""What a job asks for, as it could be sent again; and the last decision on where it runs."""

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
from rota.model.job import JobKind, JobSpec, NeedOrigin, with_observed_needs
from rota.model.recovery import PLAIN, Retry
from rota.model.service import SIGTERM
from rota.model.shape import Policy
from rota.model.steps import Step
from rota.rules.phases import Phase

Json = dict[str, Any]

BLOCKS_SCANNED_MAX = 256  # for the last decision, newest first: the largest jobs have many more


def readable_spec(wanted: JobSpec, caller: Caller, namespace: str) -> JobSpec:
    """The spec as the caller may read it: without values of environments, unless it may submit there."""
    if access.is_allowed(caller, Action.READ_ENVIRONMENTS, namespace):
        return wanted
    steps = tuple(msgspec.structs.replace(step, env=access.redacted(step.env)) for step in wanted.steps)
    return msgspec.structs.replace(wanted, env=access.redacted(wanted.env), steps=steps)


def spec_json(wanted: JobSpec) -> Json:
    """All of it: what a caller is shown goes through `readable` first."""
    left = dict(wanted.needs)
    return {
        "name": wanted.name,
        "namespace": wanted.namespace,
        "command": wanted.command or None,
        "env": wanted.env,
        "workdir": wanted.workdir,
        "count": wanted.size,
        "parallel": wanted.parallel,
        "cpu": left.pop("cpu", 0) / 1000,
        "memory": left.pop("memory", 0),
        "disk": left.pop("disk", 0),
        "gpu": gpu_count(left.pop("gpu", 0)),
        "resources": left,
        "where": [str(constraint) for constraint in wanted.where],
        "priority": wanted.priority,
        "retries": wanted.retries,
        "timeout": wanted.timeout_seconds,
        "grace": wanted.grace_seconds,
        "run": wanted.run.value,
        "when_unschedulable": wanted.when_unschedulable.value,
        "recovery": wanted.recovery.value,
        **({} if wanted.recovery_controller is None else _controller_fields(wanted)),
        "labels": wanted.labels,
        **({"steps": [_step_json(step) for step in wanted.steps]} if wanted.steps else {}),
        **({"files": {path: len(content) for path, content in wanted.files.items()}} if wanted.files else {}),
        **dict(_optional_fields(wanted)),
        **({} if wanted.container is None else _container_json(wanted.container)),
        **({} if wanted.sandbox is None else {"sandbox": _sandbox_json(wanted.sandbox)}),
        **({"limits": _limits_json(wanted.limits)} if wanted.limits else {}),
        **dict(_kind_fields(wanted)),
    }


def needs_json(wanted: JobSpec) -> Json:
    """What is reserved for a task, what it is likely to use, and by whose word; of old jobs nothing."""
    likely = with_observed_needs(wanted).needs
    return {
        resource: {
            "reserved": quantities_json({resource: wanted.needs.get(resource, 0)})[resource],
            "assessed": quantities_json({resource: likely.get(resource, 0)})[resource],
            "origin": (NeedOrigin.OBSERVED if resource in wanted.observed else origin).value,
        }
        for resource, origin in wanted.origins.items()
    }


def _controller_fields(wanted: JobSpec) -> Json:
    return {
        "controller": wanted.controller,
        "when_no_controller": wanted.when_no_controller.value,
        "controller_wait": wanted.controller_wait_seconds,
    }


def _kind_fields(wanted: JobSpec) -> Iterator[tuple[str, Any]]:
    yield "kind", wanted.kind.value
    if wanted.stop_signal != SIGTERM:
        yield "stop_signal", signal_name(wanted.stop_signal)
    if wanted.is_service:
        yield "restart", restart_json(wanted.restart)
        yield "rollout", rollout_policy_json(wanted.rollout)
    if wanted.check is not None:
        yield "check", check_json(wanted.check)


def _limits_json(limits: dict[str, int]) -> Json:
    return limits | ({"cpu": limits["cpu"] / 1000} if "cpu" in limits else {})


def _optional_fields(wanted: JobSpec) -> Iterator[tuple[str, Any]]:
    """Only those it has."""
    texts = {
        "prefer": wanted.prefer,
        "near": wanted.near,
        "apart": wanted.apart,
        "spread": wanted.spread,
        "tolerate": wanted.tolerate,
    }
    yield from ((name, [str(one) for one in given]) for name, given in texts.items() if given)
    if wanted.kind is not JobKind.BATCH:
        yield "kind", wanted.kind.value
    if wanted.after:
        yield "after", [{"job": one.job, "on": one.on.value} for one in wanted.after]
    if wanted.gang:
        yield "gang", True
    if wanted.policy is not Policy.SPREAD:
        yield "policy", wanted.policy.value
    denied = {"preemptible": wanted.preemptible, "move_pending": wanted.move_pending}
    yield from ((name, False) for name, may in denied.items() if not may)
    plain = {
        "rerun_of": wanted.rerun_of or None,
        "noise": wanted.noise,
        "evict_at_most": wanted.evict_at_most,
        "expect": wanted.expect_seconds,
        "queue_timeout": wanted.queue_timeout_seconds,
        "log_bytes": wanted.log_bytes,
        "lease": wanted.lease_seconds,
        "lease_margin": wanted.lease_margin_seconds,
        "keep": wanted.keep_seconds,
        "cluster": wanted.cluster,
        "results": wanted.results or None,
    }
    yield from ((name, given) for name, given in plain.items() if given is not None)
    if wanted.retry != PLAIN:
        yield "retry", _retry_json(wanted.retry)
    if wanted.deadline_at_ms is not None:
        yield "deadline", format_utc(wanted.deadline_at_ms)


def _retry_json(retry: Retry) -> Json:
    """Without the number of times, which has a field of its own."""
    lists = {"on": [*retry.codes, *retry.on], "fail_on": list(retry.fail_on)}
    return {name: given for name, given in lists.items() if given} | {
        "delay": retry.delay_ms / 1000,
        "delay_max": retry.delay_max_ms / 1000,
        "jitter": retry.jitter_percent / 100,
    }


def _step_json(step: Step) -> Json:
    said: Json = {"name": step.name, "command": step.command}
    if step.env:
        said["env"] = step.env
    if step.timeout_seconds is not None:
        said["timeout"] = step.timeout_seconds
    return said


def _sandbox_json(sandbox: SandboxSpec) -> Json:
    return {"network": sandbox.network, "writable": list(sandbox.writable)}


def _container_json(container: ContainerSpec) -> Json:
    mounts = [
        {"source": one.source, "target": one.target, "read_only": one.read_only} for one in container.mounts
    ]
    inside = {
        "user": container.user,
        "network": container.network.value,
        "mounts": mounts,
        "workdir": container.workdir,
        "pull": container.pull.value,
    }
    return {"image": container.image, "container": inside}


def placement_json(mirror: Mirror, entry: JobEntry) -> Json | None:
    """The last decision: which node, over which, by how much."""
    newest = islice(reversed(entry.attempts.values()), BLOCKS_SCANNED_MAX)
    block = max((one for one in newest if one.choice), key=_placed_at_ms, default=None)
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
    """How many of the tasks that run do so by which version of the spec."""
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
    """GPUs as people write them: 2, or 0.5."""
    whole, part = divmod(thousandths, WHOLE_GPU)
    return thousandths / WHOLE_GPU if part else whole


def _placed_at_ms(block: AttemptBlock) -> int:
    return int(column(block, "placed_at_ms").max())
