"""Reasons to wait that no node can remove: `parallel`, the namespace's quota, backoff, the deadline."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rota.model.amounts import TASKS
from rota.model.columns import column
from rota.model.limits import BLOCK_TASKS
from rota.model.namespace import NamespaceRecord
from rota.model.outlook import WaitReason
from rota.model.plan import Instant
from rota.model.view import JobView, View
from rota.rules.phases import Phase
from rota.scheduler.explain.phrases import format_amount
from rota.scheduler.explain.queue_position import is_too_late
from rota.scheduler.order import FairShares, count_startable
from rota.scheduler.policy.moves import move_wait_reasons


class JobLimits(NamedTuple):
    """Reasons that lie in the job itself; `stuck`: no node can help."""

    reasons: tuple[WaitReason, ...]
    changes: tuple[str, ...]
    stuck: bool
    permanent: bool = False  # they never end


class _QuotaShortage(NamedTuple):
    """A resource whose quota the next task would exceed."""

    resource: str
    held: int
    quota: int
    asked: int


def find_job_limits(view: View, job: JobView, shares: FairShares, now: Instant) -> JobLimits:
    full, backoffs = _parallel_reasons(job, now), _backoff_reasons(job, now)
    none_may_start = count_startable(job, shares, now) <= 0
    short = list(_quota_shortages(view, job)) if none_may_start and not full else []
    late = is_too_late(job, now)
    stuck = late or none_may_start or not job.ready(now.ms, 1)
    if job.spec.gang and len(job.ready(now.ms, job.task_counts.pending)) < job.task_counts.pending:
        stuck = True
    reasons = [
        *full,
        *(_quota_reason(job, shortage) for shortage in short),
        *move_wait_reasons(view, job, now),
        *backoffs,
    ]
    if late:
        reasons.insert(0, WaitReason("deadline", 1, 1, "it can no longer be over by its deadline"))
    changes = [f"would start with parallel > {job.spec.parallel}"] if full else []
    changes += [_larger_quota(job, short)] if short else []
    permanent = late or any(shortage.asked > shortage.quota for shortage in short)
    return JobLimits(tuple(reasons), () if late else tuple(changes), stuck, permanent)


def _parallel_reasons(job: JobView, now: Instant) -> list[WaitReason]:
    live, parallel = job.task_counts.live, job.spec.parallel
    moved = len(job.move_waits_end_ms(now.ms))
    if job.task_counts.pending > moved:  # moved tasks between two nodes still count towards `parallel`
        live += moved
    if parallel is None or live < parallel:
        return []
    text = f"{live} of its tasks {'is' if live == 1 else 'are'} under way, and parallel allows {parallel}"
    return [WaitReason("parallel", live, parallel, text)]


def _quota_shortages(view: View, job: JobView) -> Iterator[_QuotaShortage]:
    spec = job.spec
    held = view.usage.by_namespace.get(spec.namespace, {})
    tasks = job.task_counts.pending if spec.gang else 1
    needs = {**spec.needs, TASKS: 1}
    for resource, quota in view.namespaces.get(spec.namespace, NamespaceRecord("")).quota.items():
        asked = needs.get(resource, 0) * tasks
        if asked and held.get(resource, 0) + asked > quota:
            yield _QuotaShortage(resource, held.get(resource, 0), quota, asked)


def _quota_reason(job: JobView, short: _QuotaShortage) -> WaitReason:
    resource, all_of_it = short.resource, job.spec.gang and job.task_counts.pending > 1
    held, quota, asked = (
        format_amount(resource, amount) for amount in (short.held, short.quota, short.asked)
    )
    request = "its gang asks" if all_of_it else "a task asks"
    holds = f"namespace {job.spec.namespace} holds {held} of the {quota} {resource} of its quota"
    text = f"{holds}, {request} for {asked}"
    return WaitReason("quota", short.held, short.quota, text)


def _larger_quota(job: JobView, short: list[_QuotaShortage]) -> str:
    amounts = " ".join(
        f"{shortage.resource}={_as_argument(shortage.resource, shortage.held + shortage.asked)}"
        for shortage in short
    )
    return f"would start with a larger quota (rota namespace set {job.spec.namespace} {amounts})"


def _as_argument(resource: str, amount: int) -> str:
    """The exact amount, in the syntax of the command line."""
    return str(amount) if resource in ("memory", "disk") else format_amount(resource, amount)


def _backoff_reasons(job: JobView, now: Instant) -> list[WaitReason]:
    backing_off: list[tuple[int, int]] = []
    for block, task in job.tasks.items():
        not_before = column(task, "not_before")
        phase = np.frombuffer(job.phases[block], np.uint8)
        at = np.nonzero((not_before > now.ms) & (phase == Phase.PENDING))[0]
        backing_off += zip(not_before[at].tolist(), (at + block * BLOCK_TASKS).tolist(), strict=True)
    if not backing_off:
        return []
    until_ms, index = min(backing_off)
    text = f"task {index} is tried again in {-((now.ms - until_ms) // 1000)} s"
    if len(backing_off) > 1:
        text = f"{len(backing_off)} tasks back off after a failure: {text}"
    return [WaitReason("pause", len(backing_off), job.task_counts.pending, text)]
