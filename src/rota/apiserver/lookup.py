"""The name or id of a job or node -> the job or node; for a caller, what it may not see does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches

from rota.apiserver.access import ALL_NAMESPACES, Action, Caller, can_see, is_allowed
from rota.model.errors import NotFound
from rota.model.ids import JobId, NodeId
from rota.model.plan import PROVIDER_SAID, EventRecord
from rota.model.view import JobView, NodeView, View

LAST = "last"
# Kinds of events that tokens of any namespace may read. Not `cluster.machine_*`, `cluster.changed` and
# `cluster.wished`, which may quote providers, nor `engine.*`, which may name jobs of other namespaces.
PUBLIC_EVENT_GROUPS = frozenset(("node", "queue", "leader"))
PUBLIC_EVENT_KINDS = frozenset(
    f"cluster.{what}" for what in ("balanced", "brake", "closed", "created", "left", "scaled")
)


def find_job(view: View, ref: str, caller: Caller) -> JobView:
    """The job with that id, or the newest of that name; `last`: the newest of all.

    A prefix of an id is not accepted: ids are consecutive numbers, so that it would be another job's id.
    """
    # By id first: a job whose name is a number must not hide the job of that id.
    job = view.jobs.get(JobId(ref))
    if job is not None and can_see(caller, job.spec.namespace):
        return job
    found = _newest(view, caller) if ref == LAST else _by_name(view, ref, caller)
    if found is not None:
        return found
    tombstone = view.ended_jobs.tombstones.get(JobId(ref))
    if tombstone is not None and can_see(caller, tombstone.namespace) and tombstone.state != "deleted":
        hint = 'submit it with keep = "720h" to have it kept for longer'
        raise NotFound(f"job {tombstone.id} {tombstone.state} and has expired", hint=hint)
    raise NotFound(f"no job is called '{ref[:60]}'", hint="see what there is: rota ls")


def task_index(job: JobView, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) >= job.spec.count:
        hint = f"its tasks are 0 to {job.spec.count - 1}"
        raise NotFound(f"job {job.spec.id} has no task '{text[:20]}'", field="index", hint=hint)
    return int(text)


def find_node(view: View, ref: str) -> NodeView:
    """The node with that id or name."""
    node = view.nodes.get(NodeId(ref))
    if node is not None:
        return node
    for other in view.nodes.values():
        if other.spec.name == ref:
            return other
    near = get_close_matches(ref, [other.spec.name for other in view.nodes.values()], 1)
    hint = f"did you mean {near[0]}?" if near else "see what there is: rota node ls"
    raise NotFound(f"no node is called '{ref[:60]}'", hint=hint)


def can_see_event(view: View, caller: Caller, event: EventRecord) -> bool:
    """Whether the caller may read an event.

    An event without a namespace is hidden from tokens of namespaces unless its kind is listed as public: a
    kind that is added later is hidden until it is listed. Output of providers is for cluster-wide operators.
    """
    if event.kind == PROVIDER_SAID:
        return is_allowed(caller, Action.READ_PROVIDERS, ALL_NAMESPACES)
    if caller.is_cluster_wide:
        return True
    if event.job is not None:
        # Hidden if in doubt: the event may be of another namespace.
        entry = view.jobs.get(event.job)  # the namespace of a deleted job is unknown
        return entry is not None and can_see(caller, entry.spec.namespace)
    if event.namespace is not None:
        return can_see(caller, event.namespace)
    return event.kind.partition(".")[0] in PUBLIC_EVENT_GROUPS or event.kind in PUBLIC_EVENT_KINDS


def _newest(view: View, caller: Caller) -> JobView | None:
    return next(
        (job for job in reversed(list(view.jobs.values())) if can_see(caller, job.spec.namespace)), None
    )


def _by_name(view: View, name: str, caller: Caller) -> JobView | None:
    named = (job for job in view.jobs.values() if job.spec.name == name)
    return max(_visible(named, caller), key=_number, default=None)


def _visible(jobs: Iterable[JobView], caller: Caller) -> Iterable[JobView]:
    return (job for job in jobs if can_see(caller, job.spec.namespace))


def _number(job: JobView) -> int:
    return int(job.spec.id)
