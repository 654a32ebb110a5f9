"""A user's request + the view -> a Plan, or Rejected."""

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rota.apiserver import access, fields
from rota.apiserver.access import Action, Caller
from rota.apiserver.admit_clusters import check_cluster, check_machine
from rota.apiserver.afters import name_others
from rota.apiserver.contradictions import refuse_circle
from rota.apiserver.doubts import Doubt, doubts
from rota.apiserver.finding import find_job, find_node
from rota.apiserver.recovery import owned
from rota.apiserver.spec import check, parse_spec, said_needs
from rota.model.amounts import parse_seconds, show_amount
from rota.model.bounds import admitted
from rota.model.errors import BadField, Conflict, QueueFull, StoreFull
from rota.model.ids import JobId, NodeId
from rota.model.job import Counters, JobSpec, SubmitKey
from rota.model.lifecycle import NodeState
from rota.model.limits import DRAIN_SECONDS_MAX, JOBS_WAITING_MAX, NAME_LENGTH_MAX
from rota.model.needs import assess, noted
from rota.model.node import Eligibility, Link, NodeSpec, NodeWish
from rota.model.plan import Event, Instant, Plan
from rota.model.subscriber import Subscriber
from rota.model.view import NodeView, View, keys_of, keys_of_node

SUBMIT_KEY = re.compile(r"[!-~]{1,256}")  # printable, no spaces: it travels in a header

SUBSCRIBERS_MAX = 1000  # each is one record for ever


class Drain(NamedTuple):
    """When what still runs on a node has to go; None: it may end."""

    by_ms: int | None = None
    everything: bool = False
    words: str = ""


LET_IT_END = Drain()


class Submitted(NamedTuple):
    job: JobId
    new: bool  # else an earlier submit with the same key made it
    warnings: tuple[Doubt, ...] = ()


def submit(
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
    access.require(caller, Action.SUBMIT, wish.namespace)
    before = submitted_before(view, wish, key)
    if before is not None:
        return Plan(answer=Submitted(before, new=False, warnings=_warnings(view, wish, body)))
    require_room(view)
    wish_within = admitted(view, wish, known)
    check_cluster(view, wish_within.cluster)
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
    spec = owned(spec, controller)
    spec = assess(view, noted(name_others(view, spec, caller), said_needs(known)))
    if spec.needs != dated.needs:  # by its namespace: together with the rest that may be too much
        check(spec, now.wall_ms)
    refuse_circle(view, spec)
    keys = () if key is None else (SubmitKey(spec.namespace, key, spec.id, digest(wish)),)
    why = _asks_for(spec)
    return Plan(
        (spec, Counters(number, view.counters.nodes), *keys),
        events=(Event("job.submitted", why, job=spec.id),),
        why=why,
        answer=Submitted(spec.id, new=True, warnings=_warnings(view, spec, body)),
    )


def require_room(view: View) -> None:
    if view.is_short:
        raise StoreFull("the server's disk is full: nothing new is taken until there is room on it")
    if view.unfinished >= JOBS_WAITING_MAX:
        raise QueueFull(f"{view.unfinished} jobs have not ended yet", hint="wait until some have ended")


def delete(view: View, ref: str, caller: Caller) -> Plan:
    """All records of an ended job but its submit key, so that a late repeat makes no second one."""
    job = find_job(view, ref, caller)
    access.require(caller, Action.DELETE, job.spec.namespace)
    if ref != job.spec.id:  # a name would mean the next one when the call is repeated
        raise Conflict("a job is deleted by its id", hint=f"the id of {ref[:60]} is {job.spec.id}")
    if job.status is None or not job.status.ended:
        raise Conflict(f"job {job.spec.id} has not ended", hint=f"cancel it first: rota cancel {job.spec.id}")
    followers = view.followers(job.spec.id)
    if followers:
        hint = f"cancel it first: rota cancel {' '.join(followers[:8])}"
        raise Conflict(f"job {followers[0]} waits for how job {job.spec.id} ended", hint=hint)
    why = f"{caller.name} deletes job {job.spec.id}"
    event = Event("job.deleted", why, job=job.spec.id)
    return Plan(deletes=tuple(keys_of(job)), events=(event,), why=why, answer=job.spec.id)


def wish_node(
    view: View, ref: str, eligibility: Eligibility, caller: Caller, drain: Drain = LET_IT_END
) -> Plan:
    access.require_everywhere(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    if node.revoked:
        hint = "its machine can join as a new node: rota node token"
        raise Conflict(f"node {node.spec.name} was revoked", hint=hint)
    wish = node.wish or NodeWish(node.spec.id)
    changed = msgspec.structs.replace(
        wish, eligibility=eligibility, drain_by_ms=drain.by_ms, drain_all=drain.everything
    )
    if wish == changed:
        return Plan(answer=node.spec.id, fenced=True)
    why = f"{caller.name} wants node {node.spec.name} to be {eligibility}{drain.words}"
    events = [Event("node.changed", why, node=node.spec.id, state=eligibility.value)]
    if changed.drains and not node.assigned:
        empty = f"node {node.spec.name} is drained"
        events.append(Event("node.changed", empty, node=node.spec.id, state=Eligibility.DRAINED.value))
    return Plan((changed,), events=tuple(events), why=why, answer=node.spec.id)


def drain_node(view: View, ref: str, body: object, caller: Caller, now: Instant) -> Plan:
    """Without a deadline what runs there may end; `force` is at once, unless there is one."""
    said = fields.known_fields(body, ("deadline_seconds", "force"))
    everything = fields.flag("force", said.get("force", False))
    within = said.get("deadline_seconds", None)
    if within is None and not everything:
        return wish_node(view, ref, Eligibility.DRAINING, caller)
    seconds = fields.number(
        "deadline_seconds", parse_seconds, 0 if within is None else within, DRAIN_SECONDS_MAX
    )
    told = f" within {seconds:g} s" if seconds else " at once"
    drain = Drain(now.ms + round(seconds * 1000), everything, told)
    return wish_node(view, ref, Eligibility.DRAINING, caller, drain)


def delete_node(view: View, ref: str, caller: Caller) -> Plan:
    access.require_everywhere(caller, Action.CHANGE_NODES)
    node = find_node(view, ref)
    gone = node.status is None or node.status.state in (NodeState.LOST, NodeState.LEFT)
    if node.link is Link.UP or not gone:
        hint = "stop its agent first; a node is deleted when it is lost or has left"
        raise Conflict(f"node {node.spec.name} is still there", hint=hint)
    _refuse_leased(view, node)
    return forget_node(node, f"{caller.name} deletes node {node.spec.name}")


def _refuse_leased(view: View, node: NodeView) -> None:
    """Refuse while tasks may run there under a lease: its end is counted by the node's record."""
    specs = [view.jobs[job].spec for job in dict.fromkeys(job for job, _ in node.assigned)]
    if specs:
        longest_ms = max((spec.lease_ms or 0) + spec.lease_margin_ms for spec in specs)
        hint = f"delete it when their leases have ended, {longest_ms / 1000:g} s after it was heard last"
        raise Conflict(
            f"node {node.spec.name} may still run {len(node.assigned)} tasks under a lease", hint=hint
        )


def forget_node(node: NodeView, why: str) -> Plan:
    event = Event("node.changed", why, node=node.spec.id)
    last = node.wish or NodeWish(
        node.spec.id
    )  # written first, so that whoever had a task for it is looked at
    return Plan((last,), deletes=keys_of_node(node.spec.id), events=(event,), why=why, answer=node.spec.id)


def enroll(view: View, name: str, labels: Mapping[str, str], cluster: str, now: Instant) -> Plan:
    """A new node with a number never used before, and a name nobody else has."""
    check_machine(view, cluster, labels)
    number = view.counters.nodes + 1
    spec = NodeSpec(
        NodeId(f"n{number}"), _free_name(view, name), cluster, dict(labels), joined_at_ms=now.wall_ms
    )
    why = f"node {spec.name} is enrolled in cluster {cluster} as {spec.id}"
    event = Event("node.joined", why, node=spec.id)
    return Plan((spec, Counters(view.counters.jobs, number)), events=(event,), why=why, answer=spec)


def acknowledge(
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


def _warnings(view: View, spec: JobSpec, body: object) -> tuple[Doubt, ...]:
    return doubts(view, spec, body if isinstance(body, dict) else ())


def submit_key(said: str | None) -> str | None:
    if said is not None and SUBMIT_KEY.fullmatch(said) is None:
        raise BadField(
            "Idempotency-Key", "is not a key", "write 1 to 256 printable characters without spaces"
        )
    return said


def submitted_before(view: View, wish: JobSpec, key: str | None) -> JobId | None:
    key = submit_key(key)
    if key is None:
        return None
    before = view.submitted(wish.namespace, key)
    if before is None:
        return None
    if before.digest != digest(wish):
        raise Conflict(
            f"this key has made job {before.job}, which asks for something else", hint="use another key"
        )
    if before.job not in view.jobs:
        gone = view.past.gone.get(before.job)
        how = "has expired" if gone is not None and gone.state != "deleted" else "was deleted"
        raise Conflict(f"this key has made job {before.job}, which {how}", hint="use another key")
    return before.job


def digest(wish: JobSpec) -> str:
    """Of what is asked for, however it was written; who asks and when does not count."""
    return hashlib.sha256(msgspec.msgpack.encode(wish)).hexdigest()


def _asks_for(spec: JobSpec) -> str:
    tasks = "one task" if spec.count == 1 else f"{spec.count} tasks"
    needs = ", ".join(show_amount(resource, amount) for resource, amount in spec.needs.items())
    return f"{spec.user} asks for {tasks} of {spec.name}, {'' if spec.count == 1 else 'each '}with {needs}"


def _free_name(view: View, name: str) -> str:
    taken = {node.spec.name for node in view.nodes.values()} | set(view.nodes)
    if name not in taken:
        return name
    short = name[: NAME_LENGTH_MAX - 8]
    number = 2
    while f"{short}-{number}" in taken:
        number += 1
    return f"{short}-{number}"
