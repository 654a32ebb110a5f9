"""A job of a workload -> the same job scaled to a real cluster, and the states in which its tasks may end."""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.sim.workloads.toml_file import Arrival, Workload

SLOTS_MAX = 1000  # tasks of larger arrays share slots, since a command is limited
NEVER_SECONDS = 3600.0
SLACK_SECONDS = 5.0  # added to time limits, for a busy machine
GRACE_SECONDS = 10.0
LEFT_OUT = ("where", "gpu", "disk", "resources", "namespace", "workdir")  # fields that refer to other nodes
# One argument per slot: duration, exit code of the first attempt, that of later ones, reaction to SIGTERM.
SCRIPT = """\
shift "$((ROTA_INDEX % $#))"; IFS=,; set -- $1
[ "$4" = hears ] || trap '' TERM
sleep "$1"
[ "$ROTA_ATTEMPT" = 1 ] && exit "$2"
exit "$3"
"""


class Scale(NamedTuple):
    """Scale of the real cluster: times are divided by `speed`, needs multiplied by `cpu` and `memory`."""

    speed: float
    outage_seconds: float  # of the longest outage; 0: no chaos
    cpu: float
    memory: float
    node_cpu: float
    node_memory_bytes: float


class RealJob(NamedTuple):
    """A spec, and the allowed final states of its tasks."""

    spec: dict[str, Any]
    endings: tuple[frozenset[str], ...]  # allowed final states, by task index modulo their number

    def may_end(self, index: int, state: str) -> bool:
        return state in self.endings[index % len(self.endings)]


def scale_of(
    workload: Workload, nodes: list[Mapping[str, float]], speed: float, outage_seconds: float
) -> Scale:
    """Scale needs to the cluster, so that it is as full as the simulated one."""
    cpu, memory = (sum(node[name] for node in nodes) for name in ("cpu", "memory"))
    simulated_memory = sum(group.count * group.capacity["memory"] for group in workload.nodes)
    return Scale(
        speed,
        outage_seconds,
        min(1.0, 1000 * cpu / workload.cpu_milli),
        min(1.0, memory / simulated_memory),
        min(node["cpu"] for node in nodes),
        min(node["memory"] for node in nodes),
    )


def real_job(arrival: Arrival, number: int, scale: Scale, rng: random.Random) -> RealJob:
    given = {name: value for name, value in arrival.spec.items() if name not in LEFT_OUT}
    is_retried = given.get("retries", 0) > 0 and given.get("run") != "at_most_once"
    slots = [_slot(arrival, rng, scale.speed) for _ in range(min(SLOTS_MAX, given.get("count", 1)))]
    spec = {
        **given,
        "name": f"{given.get('name', 'job')}-{number}",
        "command": ["sh", "-c", SCRIPT, "soak", *(slot.argument(is_retried=is_retried) for slot in slots)],
        "cpu": max(0.001, round(min(scale.node_cpu, given.get("cpu", 1) * scale.cpu), 3)),
        "memory": int(min(scale.node_memory_bytes, given.get("memory", 0) * scale.memory)),
        "grace": max(0.1, given.get("grace", GRACE_SECONDS) / scale.speed),
    }
    if "timeout" in given:
        # Race: a frozen keeper sees the end of a task late, which must not count as a timeout.
        longest = max((slot.seconds for slot in slots if not slot.times_out), default=0.0)
        spec["timeout"] = longest + SLACK_SECONDS + scale.outage_seconds
    return RealJob(
        spec, tuple(slot.endings(is_retried=is_retried) | _by_chaos(given, scale) for slot in slots)
    )


def _by_chaos(given: Mapping[str, Any], scale: Scale) -> frozenset[str]:
    """Final states that chaos adds: a task that is not restarted can be lost with its node."""
    once = given.get("run") == "at_most_once" or given.get("recovery", "scheduler") != "scheduler"
    return frozenset({"lost", "canceled"}) if once and scale.outage_seconds else frozenset()


class Slot(NamedTuple):
    """The behaviour of one task, or of several equal ones."""

    seconds: float
    fails: bool
    hears: bool
    times_out: bool

    def argument(self, *, is_retried: bool) -> str:
        first = int(self.fails)
        later = 0 if is_retried else first
        return f"{self.seconds:.3f},{first},{later},{'hears' if self.hears else 'deaf'}"

    def endings(self, *, is_retried: bool) -> frozenset[str]:
        if self.times_out:
            return frozenset({"timed_out"})
        return frozenset({"failed" if self.fails and not is_retried else "succeeded"})


def _slot(arrival: Arrival, rng: random.Random, speed: float) -> Slot:
    behaviour, limit_seconds = arrival.behaviour, arrival.spec.get("timeout")
    seconds = behaviour.run_ms(rng) / 1000
    times_out = limit_seconds is not None and seconds > limit_seconds
    fails, deaf = rng.random() < behaviour.fail_share, rng.random() < behaviour.deaf_share
    return Slot(NEVER_SECONDS if times_out else seconds / speed, fails, not deaf, times_out)
