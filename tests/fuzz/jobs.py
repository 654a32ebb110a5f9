"""Plausible values for every field of a job, for submits and updates of the fuzzers."""

from random import Random
from typing import Any

from rota.apiserver.admission.update import IMMUTABLE_FIELDS

Body = dict[str, Any]

NAMES = ("web", "db", "batch", "probe")
CONTROLLER = "keeper-of-jobs"

# Small pools, so that jobs interact with each other (names, labels, noise) and with nodes (labels, taints).
VALUES: dict[str, tuple[Any, ...]] = {
    "name": NAMES,
    "namespace": ("default", "team"),
    "command": (["true"], ["sleep", "1"], "true"),
    "steps": ([{"name": "one", "command": ["true"]}, {"name": "two", "command": ["true"]}],),
    "files": ({"input.txt": "hello"}, {"bin": {"base64": "AAE="}}),
    "env": ({"COLOUR": "red"}, {"COLOUR": None}, {"A": "1", "B": "2"}),
    "workdir": ("/tmp", "/"),
    "count": (1, 2, 3, 5, 300),
    "parallel": (1, 2),
    "cpu": (0.25, 1, 2, 3),
    "memory": (0, "64m", "1g"),
    "disk": (0, "1m"),
    "gpu": (0, 0.25, 0.5, 1, 2),
    "resources": ({"licence": 1}, {"licence": 2}, {"licence": None}),
    "where": (["zone == a"], ["zone != a"], ["zone exists"], ["node != n1"]),
    "region": ("eu",),
    "on": ("n1", "n2"),
    "gpu_model": ("small",),
    "prefer": (["zone == a weight 20"], ["zone == b weight -20"]),
    "near": (["job == web"], ["app == db over zone"], ["job == db weight 30"]),
    "apart": (["job == web"], ["app == db over zone"], ["job == batch weight 30"]),
    "spread": (["zone"], ["node skew 2"], ["zone weight 20"]),
    "tolerate": (["dedicated"], ["*"]),
    "policy": ("spread", "pack"),
    "noise": ("disk", "network"),
    "gang": (True, False),
    "priority": (10, 50, 70, 100),
    "preemptible": (True, False),
    "evict_at_most": (0, 1),
    "move_pending": (True, False),
    "expect": ("1s", "1m"),
    "deadline": ("30s", "10m", "2h"),
    "log_bytes": ("64k", "1m"),
    "limits": ({"memory": "64m"}, {"pids": 10}, {"cpu": 1}, {"memory": None}),
    "results": (True, False),
    "keep": (0, "1m", "1h"),
    "retries": (0, 1, 3),
    "retry_on": ([1], ["signal", "timeout"], ["oom"]),
    "fail_on": ([2], [3, 4]),
    "retry": ({"attempts": 2, "delay": "5s"}, {"delay": "1s", "delay_max": "10s", "jitter": 0}),
    "timeout": ("10s", "1h"),
    "queue_timeout": ("20s", "1h"),
    "stop_signal": ("TERM", "INT"),
    "grace": (0, 10),
    "image": ("busybox",),
    "container": ({"network": "none"},),
    "sandbox": (True, {"network": True}),
    "labels": ({"app": "web"}, {"app": "db"}, {"app": None}),
    "run": ("at_least_once", "one_at_a_time", "at_most_once"),
    "lease": ("3s", "20s", "2m"),
    "lease_margin": ("3s", "20s"),
    "recovery": ("scheduler", "controller"),
    "controller": (CONTROLLER,),
    "when_no_controller": ("wait", "scheduler"),
    "controller_wait": ("10s",),
    "when_unschedulable": ("queue", "reject", "scale"),
    "kind": ("batch", "service", "system"),
    "restart": ({"attempts": 2, "within": "1m"},),
    "check": ({"command": ["true"]},),
    "rollout": ({"max_parallel": 2, "healthy": "5s", "deadline": "1m", "rollback": True},),
    "after": (["web"], ["db:failure"], ["batch:any", "web:any"]),
    "cluster": ("default",),
}

# Whole kinds of jobs: by chance alone hardly any combination of these fields would be admitted.
KINDS: tuple[Body, ...] = (
    {},
    {"count": 3},
    {"count": 5, "parallel": 2, "retries": 2},
    {"count": 3, "gang": True},
    {"count": 2, "gang": True, "gpu": 1},
    {"kind": "service", "count": 2},
    {"kind": "service", "check": {"command": ["true"]}},
    {"kind": "system", "cpu": 0.25},
    {"gpu": 0.5, "retries": 3, "retry": {"delay": "5s"}},
    {"gpu": 2, "priority": 70},
    {"run": "one_at_a_time", "lease": "20s", "retries": 1},
    {"run": "one_at_a_time", "lease": "2m", "count": 2},
    {"run": "at_most_once", "count": 2},
    {"recovery": "controller", "controller": CONTROLLER, "count": 2},
    {"near": ["job == web"]},
    {"apart": ["app == db"], "labels": {"app": "db"}, "count": 2},
    {"spread": ["zone"], "count": 3},
    {"deadline": "1m"},
    {"expect": "10s", "cpu": 3, "priority": 60},
    {"after": ["web:any"]},
    {"count": 300, "cpu": 0.25},
)


def job(rng: Random) -> Body:
    """A kind of job with a name and a few more fields; some combinations are refused."""
    body = {"command": ["true"], "name": rng.choice(NAMES), **rng.choice(KINDS)}
    return body | fields(rng, rng.choice((0, 0, 1, 1, 2, 3)))


def patch(rng: Random) -> Body:
    """Fields of an update: new values, or null for the default."""
    found = fields(rng, rng.choice((1, 1, 1, 2, 3)))
    return {
        name: None if rng.random() < 0.2 else value
        for name, value in found.items()
        if name not in IMMUTABLE_FIELDS
    }


def fields(rng: Random, count: int) -> Body:
    return {name: rng.choice(VALUES[name]) for name in rng.sample(sorted(VALUES), count)}
