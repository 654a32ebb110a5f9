"""A what-if copy equals the mirror, and changes of it do not affect the mirror."""

from rota.engine.state.mirror import Mirror
from rota.engine.state.what_if import WhatIfMirror
from rota.model.ids import JobId, NodeId
from rota.model.job import JobStatus
from rota.model.lifecycle import JobState
from rota.model.messages import ReportedState
from rota.model.namespace import NamespaceRecord
from rota.model.node import Connection, NodeIntent, NodeLoad
from rota.testing.builders import GIB, add_job, add_node, at, job_spec
from tests.scheduler.rounds import Rounds


def busy() -> Rounds:
    """Two nodes, jobs that run, wait, were refused and have ended."""
    rounds = Rounds()
    mirror = rounds.mirror
    add_node(mirror, "a", {"cpu": 4000, "memory": 8 * GIB, "gpu": 2000})
    add_node(mirror, "b", {"cpu": 1000})
    mirror.apply(NodeIntent(NodeId("b"), taints=("dedicated",)))
    mirror.measure(NodeId("a"), NodeLoad(memory_free=GIB))
    mirror.apply(NamespaceRecord("team", {"cpu": 8000}))
    add_job(mirror, job_spec(1, count=3, namespace="team"))
    add_job(mirror, job_spec(2, needs={"gpu": 500}))
    add_job(mirror, job_spec(3, needs={"cpu": 64_000}))
    rounds.go()
    rounds.report("a", 1, ReportedState.EXITED, (0, 1), exit_code=0, ran_us=1_000_000)
    rounds.report("a", 2, ReportedState.REFUSED, (0, 1), reason="no such directory")
    mirror.apply(JobStatus(add_job(mirror, job_spec(4)), JobState.CANCELED))
    return rounds


def test_a_what_if_copy_equals_the_mirror() -> None:
    live = busy().mirror
    shadow = WhatIfMirror.from_copy(WhatIfMirror.copy_of(live))

    assert room_of(shadow) == room_of(live)
    assert dict(shadow.pending_queues()) == dict(live.pending_queues())
    assert shadow.usage.by_namespace["team"] == live.usage.by_namespace["team"]
    assert shadow.namespaces == live.namespaces
    assert shadow.counters == live.counters
    assert shadow.unfinished == live.unfinished
    assert shadow.jobs[JobId("1")].run_us == live.jobs[JobId("1")].run_us
    errand = live.jobs[JobId("2")].spec.refusal_key
    assert shadow.refused_by(errand) == live.refused_by(errand) != {}


def test_ended_jobs_are_left_out() -> None:
    live = busy().mirror

    assert JobId("4") in live.jobs
    assert JobId("4") not in WhatIfMirror.from_copy(WhatIfMirror.copy_of(live)).jobs


def test_changes_of_a_what_if_copy_do_not_affect_the_mirror() -> None:
    rounds = busy()
    before = room_of(rounds.mirror)
    shadow = WhatIfMirror.from_copy(WhatIfMirror.copy_of(rounds.mirror))
    add_node(shadow, "c")
    shadow.connect(NodeId("a"), Connection.DOWN)
    add_job(shadow, job_spec(5))
    shadow.refused_by(shadow.jobs[JobId("2")].spec.refusal_key)[NodeId("b")] = (at(0).ms, "no")  # type: ignore[index]

    assert room_of(rounds.mirror) == before
    assert JobId("5") not in rounds.mirror.jobs
    assert NodeId("b") not in rounds.mirror.refused_by(rounds.mirror.jobs[JobId("2")].spec.refusal_key)


def room_of(mirror: Mirror) -> dict[str, object]:
    table, size = mirror.node_table, mirror.node_table.size
    return {
        "ids": table.ids,
        "rows": table.rows,
        "free": table.free().tolist(),
        "devices": table.free_gpus().tolist(),
        "open": table.open[:size].tolist(),
        "held": table.held[:size].tolist(),
        "labels": table.labels,
        "taints": table.taints,
    }
