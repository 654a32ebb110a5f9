"""A JobSpec -> BadField if two of its fields contradict each other, whatever nodes there are or will be."""

from itertools import combinations

from rota.model.errors import BadField
from rota.model.ids import JobId
from rota.model.job import JobSpec
from rota.model.shape import AffinityTerm, Constraint, Op
from rota.model.view import View

CYCLE_JOBS_MAX = 1_000  # waiting jobs searched for a cycle; with more of them there is no search


def check_consistency(spec: JobSpec, wall_ms: int) -> None:
    """Check the spec by itself, without a view of the cluster."""
    _check_where(spec.where)
    _check_terms(spec)
    _check_counts(spec)
    _check_times(spec, wall_ms)


def refuse_affinity_cycle(view: View, spec: JobSpec) -> None:
    """Refuse a job that must run near one that must run near it: neither could ever start.

    The cycle may lead over several waiting jobs. It is found by letting all of them start that can, one
    after the other, as in the detection of a deadlock.
    """
    needed = _required_terms(spec)
    # Fast path: without a term of another job that means this one, it cannot be part of a cycle.
    is_needed = any(
        namespace == spec.namespace and jobs.holds(spec.selector_labels)
        for namespace, jobs in view.affinity.members
    )
    if not needed or not is_needed:
        return
    waiting = _waiting_jobs(view, spec.namespace)
    if len(waiting) > CYCLE_JOBS_MAX:
        return
    stuck = _never_starting(view, [spec, *waiting])
    if spec.id not in stuck:
        return
    term, partner = next(
        (term, stuck[job.id])
        for term in needed
        for job in waiting
        if job.id in stuck and term.jobs.holds(job.selector_labels)
    )
    problem = f"'{term}' waits for job {partner.id} to run, which waits for this one: neither could start"
    raise BadField("near", problem, "leave one of the two terms out, or give it a weight")


def _check_where(where: tuple[Constraint, ...]) -> None:
    for label in dict.fromkeys(constraint.label for constraint in where):
        same_label = [constraint for constraint in where if constraint.label == label]
        for pair in combinations(same_label, 2):
            if _are_exclusive(list(pair)):
                first, second = pair
                raise BadField(
                    "where", f"'{first}' and '{second}' cannot both hold", _suggestion(first, second)
                )
        if _are_exclusive(same_label):
            problem = " and ".join(f"'{constraint}'" for constraint in same_label) + " cannot hold together"
            raise BadField("where", problem, "leave one of them out")


def _are_exclusive(constraints: list[Constraint]) -> bool:
    """Whether no value of their common label satisfies all of these constraints."""
    allowed = [constraint.values for constraint in constraints if constraint.op in (Op.EQUAL, Op.IN)]
    if allowed:
        label = constraints[0].label
        return not any(
            all(constraint.holds({label: value}) for constraint in constraints) for value in allowed[0]
        )
    above = [constraint for constraint in constraints if constraint.op is Op.MORE]
    below = [constraint for constraint in constraints if constraint.op is Op.LESS]
    # A value between two bounds exists only if the upper bound is above the lower one.
    return any(not low.holds({low.label: high.values[0]}) for low in above for high in below)


def _suggestion(first: Constraint, second: Constraint) -> str:
    if first.op is Op.EQUAL and second.op is Op.EQUAL:
        return f"write '{first.label} in {first.values[0]},{second.values[0]}' for either of them"
    return "leave one of them out"


def _check_terms(spec: JobSpec) -> None:
    for near in spec.near:
        for apart in spec.apart:
            if (near.jobs, near.over) == (apart.jobs, apart.over):
                problem = f"'{near.jobs} over {near.over}' is in near as well as in apart"
                raise BadField("apart", problem, "leave one of the two out")


def _check_counts(spec: JobSpec) -> None:
    if spec.gang and spec.parallel is not None and spec.parallel < spec.count:
        problem = f"its {spec.count} tasks start together, and parallel allows {spec.parallel}"
        raise BadField("gang", problem, "leave gang or parallel out")
    if spec.evict_at_most is None:
        return
    if spec.evict_at_most > spec.size:
        problem = f"{spec.evict_at_most} is more than its {spec.size} tasks"
        raise BadField("evict_at_most", problem, f"write 0 to {spec.size}, or leave it out")
    if not spec.preemptible and spec.evict_at_most > 0:
        problem = f"allows {spec.evict_at_most} to be evicted, and preemptible = false allows none"
        raise BadField("evict_at_most", problem, "leave one of the two out")


def _check_times(spec: JobSpec, wall_ms: int) -> None:
    expect, timeout = spec.expect_seconds, spec.timeout_seconds
    if expect is not None and timeout is not None and expect > timeout:
        problem = f"{expect:g} s is longer than its timeout of {timeout:g} s"
        raise BadField("expect", problem, "write at most the timeout, or raise that")
    if spec.deadline_at_ms is None or spec.expect_ms is None:
        return
    left_ms = spec.deadline_at_ms - wall_ms
    if left_ms < spec.expect_ms:
        which = "timeout" if expect is None else "expect"
        problem = (
            f"is in {left_ms / 1000:g} s, and by its {which} a task may take {spec.expect_ms / 1000:g} s"
        )
        raise BadField("deadline", problem, f"write a later deadline, or a shorter {which}")


def _required_terms(spec: JobSpec) -> list[AffinityTerm]:
    """Terms that other jobs must satisfy before this one can start."""
    return [term for term in spec.near if term.weight is None and not term.jobs.holds(spec.selector_labels)]


def _waiting_jobs(view: View, namespace: str) -> list[JobSpec]:
    """Jobs of the namespace without a live task, at most one queue more than CYCLE_JOBS_MAX."""
    found: list[JobSpec] = []
    for queue, ranks in view.pending_queues():
        if queue.owner.namespace == namespace:
            jobs = (view.jobs[JobId(str(rank[2]))] for rank in ranks[: CYCLE_JOBS_MAX + 1])
            found += [job.spec for job in jobs if not job.task_counts.live]
        if len(found) > CYCLE_JOBS_MAX:
            break
    return found


def _never_starting(view: View, specs: list[JobSpec]) -> dict[JobId, JobSpec]:
    """The jobs that remain when all that can start have started, one after the other."""
    stuck = {spec.id: spec for spec in specs}
    while True:
        free = [spec for spec in stuck.values() if _can_start(view, spec, stuck, specs)]
        if not free:
            return stuck
        for spec in free:
            del stuck[spec.id]


def _can_start(view: View, spec: JobSpec, stuck: dict[JobId, JobSpec], specs: list[JobSpec]) -> bool:
    return all(
        _has_running_member(view, spec.namespace, term)
        or any(term.jobs.holds(other.selector_labels) for other in specs if other.id not in stuck)
        # No waiting job is meant: one that is may still be submitted.
        or not any(term.jobs.holds(other.selector_labels) for other in specs)
        for term in _required_terms(spec)
    )


def _has_running_member(view: View, namespace: str, term: AffinityTerm) -> bool:
    counted = view.affinity.members.get((namespace, term.jobs))
    if counted is not None:
        return bool(counted.any())
    return any(
        term.jobs.holds(view.jobs[job].spec.selector_labels)
        for node in view.nodes.values()
        for job, _ in node.assigned
        if view.jobs[job].spec.namespace == namespace
    )
