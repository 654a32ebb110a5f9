"""The report on a batch of seeds: how often each fault and each rare branch was met, and which never was."""

from collections import Counter
from collections.abc import Sequence

from rota.model.job import Recovery
from rota.model.lifecycle import ATTEMPT, AttemptState
from rota.model.recovery import RecoveryDecision
from rota.sim.faults.draw import KINDS
from rota.sim.scenario import Finding
from rota.sim.shrink import relevant_trace

BRANCHES = (
    "agent: refused an older epoch",
    "agent: refused stale orders",
    "agent: handshake timed out",
    "agent: welcome came too late",
    "cluster: failed permanently",
    "election: a leader stepped down",
    "election: another server took over",
    "keeper: cannot start on a full disk",
    "keeper: killed processes of an earlier keeper",
    "network: a message duplicated",
    "network: a message lost",
    "network: keepalive timed out",
    "operator: confirmed that nodes are gone",
    "recovery: decision came too late or contradicted another",
    *(f"recovery: decided {decision}" for decision in RecoveryDecision),
    *(f"recovery: a node leaves under {recovery}" for recovery in Recovery),
    "recovery: controller was asked",
    "placed: apart from others",
    "placed: in a gang",
    "placed: near others",
    "placed: spread",
    "placed: under a quota",
    "placed: with GPUs",
    "placed: with a condition",
    "placed: with a toleration",
    *(f"provider: a {verb} {what}" for verb in ("create", "list", "remove") for what in ("failed", "hung")),
    "provider: left machines out of a list",
    "provider: listed what there is not",
    "provider: made a machine twice",
    "server: a node redialled before its stream had broken",
    "server: reloaded after a failed commit",
    "server: refused a node, ahead",
    "server: refused a node, elsewhere",
    "server: refused a node, not leading",
    "store: a deposed leader was refused",
    "store: a stale read",
    "store: an outdated view was refused",
    "store: committed, and reported as failed",
    "store: full",
    "store: written to while the disk was low",
    "store: no answer",
    "store: refused",
    "store: the server died during a commit",
    "store: the server died right after a commit",
    "subscriber: received a page twice",
    "subscriber: lost the end of a page",
    "subscriber: was too far behind",
    "task: quarantined",
    "server: adopted a job from a node",
    "store: its memory was lost",
    "task: its report was refused",
    "task: reported a result",
    "task: two attempts alive at once",
    "task: its report was stored",
    "task: its report was known",
    "user: a submit was refused",
    "user: a conflicting submit was refused",
    "user: an answer was late or duplicate",
    "user: retried",
    "user: created a cron",
    "user: ended a service",
    "user: canceled an infeasible job",
    "user: released quarantined tasks",
    "user: rolled out a bad version",
    "user: rolled out a good version",
    "user: scaled a job down",
    "rollout: a newer version",
    "rollout: rolling back",
)
STEPS = tuple(
    f"attempt: {before.name.lower()} to {after.name.lower()}"
    for before, after in dict.fromkeys(
        (AttemptState(state), AttemptState(end)) for (state, _), end in ATTEMPT.items()
    )
)


def batch_table(counts: Counter[str], seeds: int) -> str:
    known = [f"fault: {kind}" for kind in KINDS] + list(BRANCHES) + list(STEPS)
    names = list(dict.fromkeys([*known, *sorted(counts)]))
    width = max(map(len, names))
    lines = [f"{'met in ' + format(seeds, ',') + ' seeds':<{width}}  {'times':>12}"]
    lines += [f"{name:<{width}}  {counts[name]:>12,}" for name in names if counts[name]]
    never = [name for name in names if not counts[name]]
    lines.append(f"never met: {', '.join(never) if never else 'nothing'}")
    return "\n".join(lines)


def failure(found: Finding, shrunk: Finding) -> str:
    """Describe a violation: the smallest case, the relevant trace, and a command that reproduces it."""
    case, original = shrunk.scenario, found.scenario
    jobs, faults = _count(case.arrivals, "job"), _count(case.faults, "fault")
    kept = f"--jobs-kept {_indices(case.arrivals, original.arrivals)}"
    kept += f" --faults-kept {_indices(case.faults, original.faults)}"
    memory = " --memory" if case.size.forgets else ""
    lines = [
        f"seed {case.seed}: {found.broken}",
        f"the shortest case found: {jobs} of {len(original.arrivals)}, {faults} of {len(original.faults)}",
        *[f"  fault at {fault}" for fault in case.faults],
        "",
        *relevant_trace(shrunk),
        "",
        f"reproduce: python -m rota.sim --seed {case.seed}{memory} --trace {kept}",
    ]
    return "\n".join(lines)


def _indices(some: Sequence[object], of: Sequence[object]) -> str:
    return ",".join(str(of.index(item)) for item in some) or '""'


def _count(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
