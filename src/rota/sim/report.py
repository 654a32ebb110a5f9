"""What many seeds have shown: how often each fault and each rare branch was met, and which never was."""

from collections import Counter
from collections.abc import Sequence

from rota.model.job import Recovery
from rota.model.lifecycle import ATTEMPT, AttemptState
from rota.model.recovery import RecoveryDecision
from rota.sim.faults.draw import KINDS
from rota.sim.scenario import Finding
from rota.sim.shrink import story

BRANCHES = (
    "agent: refused an older epoch",
    "agent: refused stale orders",
    "agent: was never welcomed",
    "agent: was welcomed too late",
    "cluster: failed for good",
    "election: a leader stepped down",
    "election: another server took over",
    "keeper: cannot start on a full disk",
    "keeper: killed what an earlier one had started",
    "network: a message doubled",
    "network: a message lost",
    "network: pings without an answer",
    "operator: said that nodes are gone",
    "owner: came too late, or contradicted itself",
    *(f"owner: said {word}" for word in RecoveryDecision),
    *(f"owner: a node leaves under {recovery}" for recovery in Recovery),
    "owner: was asked",
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
    "server: a node called again before its stream had broken",
    "server: started over after a commit that failed",
    "server: turned a node away, ahead",
    "server: turned a node away, elsewhere",
    "server: turned a node away, not leading",
    "store: a deposed leader was refused",
    "store: a stale read",
    "store: an outdated view was refused",
    "store: done, and said to have failed",
    "store: full",
    "store: short, and written to",
    "store: no answer",
    "store: refused",
    "store: the server died during a commit",
    "store: the server died right after a commit",
    "subscriber: heard a page twice",
    "subscriber: lost the rest of a page",
    "subscriber: was too far behind",
    "task: held as suspect",
    "server: adopted a job from a node",
    "store: its memory was lost",
    "task: its report was refused",
    "task: reports what came of it",
    "task: two attempts alive at once",
    "task: was told that its report is kept",
    "task: was told that its report is known",
    "user: a submit was refused",
    "user: a wrong submit was refused",
    "user: an answer came twice or late",
    "user: asked again",
    "user: created a cron",
    "user: ended a service",
    "user: gave up waiting",
    "user: released what was held",
    "user: rolled out a bad version",
    "user: rolled out a good version",
    "user: wanted fewer tasks",
    "rollout: a newer version",
    "rollout: going back",
)
STEPS = tuple(
    f"attempt: {before.name.lower()} to {after.name.lower()}"
    for before, after in dict.fromkeys(
        (AttemptState(one[0]), AttemptState(end)) for one, end in ATTEMPT.items()
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
    """For whoever has to understand it: what broke, after what, the story, and how to see it again."""
    case, whole = shrunk.scenario, found.scenario
    jobs, faults = _count(case.arrivals, "job"), _count(case.faults, "fault")
    kept = f"--jobs-kept {_places(case.arrivals, whole.arrivals)}"
    kept += f" --faults-kept {_places(case.faults, whole.faults)}"
    memory = " --memory" if case.size.forgets else ""
    lines = [
        f"seed {case.seed}: {found.broken}",
        f"the shortest case found: {jobs} of {len(whole.arrivals)}, {faults} of {len(whole.faults)}",
        *[f"  fault at {fault}" for fault in case.faults],
        "",
        *story(shrunk),
        "",
        f"see it again: python -m rota.sim --seed {case.seed}{memory} --trace {kept}",
    ]
    return "\n".join(lines)


def _places(some: Sequence[object], of: Sequence[object]) -> str:
    return ",".join(str(of.index(one)) for one in some) or '""'


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"
