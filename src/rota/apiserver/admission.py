"""A user's request + the view -> a Plan, or Rejected."""

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rota.apiserver import access, fields
from rota.apiserver.access import Action, Caller
from rota.apiserver.admit_clusters import check_job_cluster, check_enrolling_machine
from rota.apiserver.afters import resolve_dependencies
from rota.apiserver.contradictions import refuse_affinity_cycle
from rota.apiserver.doubts import SubmitWarning, submit_warnings
from rota.apiserver.finding import find_job, find_node
from rota.apiserver.recovery import with_controller
from rota.apiserver.spec import check_spec, parse_spec, named_resources
from rota.model.amounts import parse_seconds, show_amount
from rota.model.bounds import admitted
from rota.model.errors import BadField, Conflict, QueueFull, StoreFull
from rota.model.ids import JobId, NodeId
from rota.model.job import Counters, JobSpec, SubmitKey
from rota.model.lifecycle import NodeState
from rota.model.limits import DRAIN_SECONDS_MAX, JOBS_WAITING_MAX, NAME_LENGTH_MAX
from rota.model.needs import assess_needs, with_origins
from rota.model.node import Eligibility, Connection, NodeSpec, NodeIntent
from rota.model.plan import EventRecord, Instant, Plan
from rota.model.subscriber import Subscriber
from rota.model.view import NodeView, View, keys_of, keys_of_node

IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,256}")  # printable, no spaces: it travels in a header

SUBSCRIBERS_MAX = 1000  # each is one record for ever


class DrainDeadline(NamedTuple):
    """When what still runs on a node has to go; None: it may end."""

    by_ms: int | None = None
    everything: bool = False
    text: str = ""


NO_DRAIN_DEADLINE = DrainDeadline()


class SubmitResult(NamedTuple):
    job: JobId
    new: bool  # else an earlier submit with the same key made it
    warnings: tuple[SubmitWarning, ...] = ()


def submit_job(
    view: View,
    body: object,
    caller: Caller,
    key: str | None,
    now: Instant,
    *,
    controller: str | None = None,
) -> Plan:
    """`controller`: the subscriber that owns the recovery. The key compares the body without it."""
    wish = parse_spec(body)
    known = body if isinstance(body, dict) else {}
    access.require_in_namespace(caller, Action.SUBMIT, wish.namespace)
    before = find_earlier_submit(view, wish, key)
    if before is not None:
        return Plan(answer=SubmitResult(before, new=False, warnings=_warnings(view, wish, body)))
    require_capacity(view)
    wish_within = admitted(view, wish, known)
    check_job_cluster(view, wish_within.cluster)
    number = view.counters.jobs + 1
    dated = wish if wish.deadline_at_ms is None else parse_spec(body, now.wall_ms)
    spec = msgspec.structs.replace(
        dated,
        id=JobId(str(number)),
        submitted_at_ms=now.wall_ms,
        user=caller.name,
        priority=wish_within.priority,
        cluster=wish_within.cluster,
    )
    spec = with_controller(spec, controller)
    spec = assess_needs(view, with_origins(resolve_dependencies(view, spec, caller), named_resources(known)))
    if spec.needs != dated.needs:  # by its namespace: together with the rest that may be too much
        check_spec(spec, now.wall_ms)
    refuse_affinity_cycle(view, spec)
    keys = () if key is None else (SubmitKey(spec.namespace, key, spec.id, spec_digest(wish)),)
    why = _describe_request(spec)
    return Plan(
        (spec, Counters(number, view.counters.nodes), *keys),
        events=(EventRecord("job.submitted", why, job=spec.id),),
        why=why,
        answer=SubmitResult(spec.id, new=True, warnings=_warnings(view, spec, body)),
    )


def require_capacity(view: View) -> None:
    if view.disk_low:
        raise StoreFull("the server's disk is full: nothing new is taken until there is room on it")
    if view.unfinished >= JOBS_WAITING_MAX:
        raise QueueFull(f"{view.unfinished} jobs have not ended yet", hint="wait until some have ended")


def delete_job(view: View, ref: str, caller: Caller) -> Plan:
    """All records of an ended job but its submit key, so that a late repeat makes no second one."""
    job = find_job(view, ref, caller)
    access.require_in_namespace(caller, Action.DELETE, job.spec.namespace)
    if ref != job.spec.id:  # a name would mean the next one when the call is repeated
        raise Conflict("a job is deleted by its id", hint=f"the id of {ref[:60]} is {job.spec.id}")
    if job.status is None or not job.status.ended:
        raise Conflict(f"job {job.spec.id} has not ended", hint=f"cancel it first: rota cancel {job.spec.id}")
    followers = view.dependents(job.spec.id)
    if followers:
        hint = f"cancel it first: rota cancel {' '.join(followers[:8])}"
        raise Conflict(f"job {followers[0]} waits for how job {job.spec.id} ended", hint=hint)
    why = f"{caller.name} deletes job {job.spec.id}"
    event = EventRecord("job.deleted", why, job=job.spec.id)
    return Plan(deletes=tuple(keys_of(job)), events=(event,), why=why, answer=job.spec.id)


def set_node_eligibility(
    view: View, ref: str, eligibility: Eligibility, caller: Caller, drain: DrainDeadline = NO_DRAIN_DEADLINE
) -> Plan:
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    if node.revoked:
        hint = "its machine can join as a new node: rota node token"
        raise Conflict(f"node {node.spec.name} was revoked", hint=hint)
    wish = node.intent or NodeIntent(node.spec.id)
    changed = msgspec.structs.replace(
        wish, eligibility=eligibility, drain_by_ms=drain.by_ms, drain_all=drain.everything
    )
    if wish == changed:
        return Plan(answer=node.spec.id, fenced=True)
    why = f"{caller.name} wants node {node.spec.name} to be {eligibility}{drain.text}"
    events = [EventRecord("node.changed", why, node=node.spec.id, state=eligibility.value)]
    if changed.drains and not node.assigned:
        empty = f"node {node.spec.name} is drained"
        events.append(EventRecord("node.changed", empty, node=node.spec.id, state=Eligibility.DRAINED.value))
    return Plan((changed,), events=tuple(events), why=why, answer=node.spec.id)


def drain_node(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan:
    """Without a deadline what runs there may end; `force` is at once, unless there is one."""
    said = fields.known_fields(body, ("deadline_seconds", "force"))
    everything = fields.flag("force", said.get("force", False))
    within = said.get("deadline_seconds", None)
    if within is None and not everything:
        return set_node_eligibility(view, ref, Eligibility.DRAINING, caller)
    seconds = fields.number(
        "deadline_seconds", parse_seconds, 0 if within is None else within, DRAIN_SECONDS_MAX
    )
    told = f" within {seconds:g} s" if seconds else " at once"
    drain = DrainDeadline(now.ms + round(seconds * 1000), everything, told)
    return set_node_eligibility(view, ref, Eligibility.DRAINING, caller, drain)


def delete_node(view: View, ref: str, caller: Caller) -> Plan:
    access.require_cluster_wide(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    gone = node.status is None or node.status.state in (NodeState.LOST, NodeState.LEFT)
    if node.connection is Connection.UP or not gone:
        hint = "stop its agent first; a node is deleted when it is lost or has left"
        raise Conflict(f"node {node.spec.name} is still there", hint=hint)
    _refuse_while_leased(view, node)
    return delete_node_records(node, f"{caller.name} deletes node {node.spec.name}")


def _refuse_while_leased(view: View, node: NodeView) -> None:
    """Refuse while tasks may run there under a lease: its end is counted by the node's record."""
    specs = [view.jobs[job].spec for job in dict.fromkeys(job for job, _ in node.assigned)]
    if specs:
        longest_ms = max((spec.lease_ms or 0) + spec.lease_margin_ms for spec in specs)
        hint = f"delete it when their leases have ended, {longest_ms / 1000:g} s after it was heard last"
        raise Conflict(
            f"node {node.spec.name} may still run {len(node.assigned)} tasks under a lease", hint=hint
        )


def delete_node_records(node: NodeView, why: str) -> Plan:
    event = EventRecord("node.changed", why, node=node.spec.id)
    last = node.intent or NodeIntent(
        node.spec.id
    )  # written first, so that whoever had a task for it is looked at
    return Plan((last,), deletes=keys_of_node(node.spec.id), events=(event,), why=why, answer=node.spec.id)


def enroll_node(view: View, name: str, labels: Mapping[str, str], cluster: str, now: Instant) -> Plan:
    """A new node with a number never used before, and a name nobody else has."""
    check_enrolling_machine(view, cluster, labels)
    number = view.counters.nodes + 1
    spec = NodeSpec(
        NodeId(f"n{number}"), _unused_name(view, name), cluster, dict(labels), joined_at_ms=now.wall_ms
    )
    why = f"node {spec.name} is enrolled in cluster {cluster} as {spec.id}"
    event = EventRecord("node.joined", why, node=spec.id)
    return Plan((spec, Counters(view.counters.jobs, number)), events=(event,), why=why, answer=spec)


def acknowledge_events(
    known: Mapping[str, Subscriber], name: str, revision: int, index: int, owner: str = ""
) -> Plan:
    """Positions only grow: a late or repeated acknowledgement changes nothing.

    One that a former holder of the name has left is replaced by the caller's own.
    """
    before = known.get(name)
    if before is not None and not before.belongs_to(owner):
        before = None
    if before is not None and (revision, index) <= (before.revision, before.index):
        return Plan(answer=before)
    if name not in known and len(known) >= SUBSCRIBERS_MAX:
        raise QueueFull(f"there are {len(known)} subscribers already", field="subscriber")
    subscriber = Subscriber(name, revision, index, owner)
    return Plan((subscriber,), answer=subscriber)


def subscriber_name(caller: Caller, name: str) -> str:
    """Nobody can move another token's position."""
    return f"{caller.name}:{fields.name('subscriber', name)}"


def _warnings(view: View, spec: JobSpec, body: object) -> tuple[SubmitWarning, ...]:
    return submit_warnings(view, spec, body if isinstance(body, dict) else ())


def parse_idempotency_key(given: str | None) -> str | None:
    if given is not None and IDEMPOTENCY_KEY.fullmatch(given) is None:
        raise BadField(
            "Idempotency-Key", "is not a key", "write 1 to 256 printable characters without spaces"
        )
    return given


def find_earlier_submit(view: View, spec: JobSpec, key: str | None) -> JobId | None:
    key = parse_idempotency_key(key)
    if key is None:
        return None
    before = view.submitted(spec.namespace, key)
    if before is None:
        return None
    if before.digest != spec_digest(spec):
        raise Conflict(
            f"this key has made job {before.job}, which asks for something else", hint="use another key"
        )
    if before.job not in view.jobs:
        gone = view.ended_jobs.tombstones.get(before.job)
        how = "has expired" if gone is not None and gone.state != "deleted" else "was deleted"
        raise Conflict(f"this key has made job {before.job}, which {how}", hint="use another key")
    return before.job


def spec_digest(spec: JobSpec) -> str:
    """Of what is asked for, however it was written; who asks and when does not count."""
    return hashlib.sha256(msgspec.msgpack.encode(spec)).hexdigest()


def _describe_request(spec: JobSpec) -> str:
    tasks = "one task" if spec.count == 1 else f"{spec.count} tasks"
    needs = ", ".join(show_amount(resource, amount) for resource, amount in spec.needs.items())
    return f"{spec.user} asks for {tasks} of {spec.name}, {'' if spec.count == 1 else 'each '}with {needs}"


def _unused_name(view: View, name: str) -> str:
    taken = {node.spec.name for node in view.nodes.values()} | set(view.nodes)
    if name not in taken:
        return name
    short = name[: NAME_LENGTH_MAX - 8]
    number = 2
    while f"{short}-{number}" in taken:
        number += 1
    return f"{short}-{number}"
