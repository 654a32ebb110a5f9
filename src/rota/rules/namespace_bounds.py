"""A job + the bounds of its namespace -> the job as it may be stored, or Rejected.

Submit, update, rerun, rollback and cron runs are all checked here. A job that was stored before a bound was
set stays as it is; an update is checked only in what it changes.
"""

from collections.abc import Collection

import msgspec

from rota.model.errors import NotAllowed, QueueFull
from rota.model.job import JobSpec
from rota.model.limits import NAMESPACE_BYTES_MAX, NAMESPACE_JOBS_MAX, NAMESPACE_TASKS_MAX
from rota.model.namespace import DEFAULT, NamespaceBounds, NamespaceRecord, NamespaceUsage, usage_of
from rota.model.view import View

EVERY_TAINT = "*"
NOTHING = NamespaceUsage()
_ASK = "ask an operator, who sets it by: rota namespace set"


def bounds_of(view: View, namespace: str) -> NamespaceBounds:
    """The configured bounds; namespaces other than `default` have built-in ones where nothing is set."""
    given = view.namespaces.get(namespace, NamespaceRecord(namespace)).bounds
    # Small installations use only `default`, where the bounds of the whole server are enough.
    if namespace == DEFAULT:
        return given
    return msgspec.structs.replace(
        given,
        jobs=NAMESPACE_JOBS_MAX if given.jobs is None else given.jobs,
        tasks=NAMESPACE_TASKS_MAX if given.tasks is None else given.tasks,
        stored_bytes=NAMESPACE_BYTES_MAX if given.stored_bytes is None else given.stored_bytes,
    )


def within_bounds(
    view: View, spec: JobSpec, stated: Collection[str], also: NamespaceUsage = NOTHING
) -> JobSpec:
    """A new job within the bounds of its namespace.

    Fields that the user has not `stated` are adapted: a lower priority, the only permitted cluster.
    `also` is the usage that the same transaction adds.
    """
    spec = within_static_bounds(view, spec, stated)
    _refuse_more(view, bounds_of(view, spec.namespace), spec.namespace, usage_of(spec), also)
    return spec


def within_static_bounds(view: View, spec: JobSpec, stated: Collection[str]) -> JobSpec:
    """The same without a check of current usage, as for the template of a cron."""
    bounds = bounds_of(view, spec.namespace)
    highest = bounds.priority
    # A priority that the user did not write is a default, and must not make every submit fail.
    if highest is not None and "priority" not in stated and spec.priority > highest:
        spec = msgspec.structs.replace(spec, priority=highest)
    if bounds.clusters is not None and spec.cluster is None and len(bounds.clusters) == 1:
        spec = msgspec.structs.replace(spec, cluster=bounds.clusters[0])
    _refuse_priority(bounds, spec)
    _refuse_tolerations(bounds, spec, spec.tolerate)
    _refuse_cluster(view, bounds, spec)
    return spec


def check_update(view: View, old: JobSpec, new: JobSpec) -> None:
    """Raises if an update takes a job beyond the bounds, or further beyond them."""
    bounds = bounds_of(view, new.namespace)
    # Only what grows is checked: after an operator has set a lower bound, existing jobs can still be updated.
    if new.priority > old.priority:
        _refuse_priority(bounds, new)
    _refuse_tolerations(bounds, new, [taint for taint in new.tolerate if taint not in old.tolerate])
    if new.cluster != old.cluster:
        _refuse_cluster(view, bounds, new)
    before, after = usage_of(old), usage_of(new)
    more = NamespaceUsage(
        0, max(0, after.tasks - before.tasks), max(0, after.stored_bytes - before.stored_bytes)
    )
    _refuse_more(view, bounds, new.namespace, more, NOTHING)


def _refuse_priority(bounds: NamespaceBounds, spec: JobSpec) -> None:
    if bounds.priority is not None and spec.priority > bounds.priority:
        problem = f"priority: {spec.priority} is more than namespace {spec.namespace} may use"
        raise NotAllowed(problem, field="priority", hint=f"write at most {bounds.priority}, or {_ASK}")


def _refuse_tolerations(bounds: NamespaceBounds, spec: JobSpec, tolerate: Collection[str]) -> None:
    if bounds.tolerate is None:
        return
    for taint in tolerate:
        key = taint.partition("=")[0]
        if not {taint, key, EVERY_TAINT} & set(bounds.tolerate):
            problem = f"tolerate: namespace {spec.namespace} may not tolerate {taint[:80]}"
            permitted = ", ".join(bounds.tolerate) or "none"
            raise NotAllowed(problem, field="tolerate", hint=f"allowed: {permitted}; {_ASK}")


def _refuse_cluster(view: View, bounds: NamespaceBounds, spec: JobSpec) -> None:
    if bounds.clusters is None:
        return
    known = view.clusters.get(spec.cluster) if spec.cluster is not None else None
    if not {spec.cluster, None if known is None else known.like} & set(bounds.clusters):
        what = "none is named" if spec.cluster is None else f"{spec.cluster} is not open to it"
        problem = f"cluster: {what}, and namespace {spec.namespace} may use some only"
        hint = f"write one of: {', '.join(bounds.clusters) or 'none'}; or {_ASK}"
        raise NotAllowed(problem, field="cluster", hint=hint)


def _refuse_more(
    view: View, bounds: NamespaceBounds, namespace: str, more: NamespaceUsage, also: NamespaceUsage
) -> None:
    usage = view.usage.usage.get(namespace, NOTHING)
    for what, most, current, added in (
        ("unfinished jobs", bounds.jobs, usage.jobs + also.jobs, more.jobs),
        ("unfinished tasks", bounds.tasks, usage.tasks + also.tasks, more.tasks),
        ("bytes of jobs", bounds.stored_bytes, usage.stored_bytes + also.stored_bytes, more.stored_bytes),
    ):
        if most is not None and added > 0 and current + added > most:
            problem = f"namespace {namespace} may have {most} {what}: it has {current}, and {added} come"
            until = "have been deleted or have expired" if what == "bytes of jobs" else "have ended"
            raise QueueFull(problem, hint=f"wait until some {until}, or {_ASK}")
