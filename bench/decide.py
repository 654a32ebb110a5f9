"""CPU time per task of the pure loop, without store, wire or processes."""

import sys
import time
from functools import partial

from rota.clusters import assign
from rota.controllers import batch
from rota.engine.loop import Loop, Request
from rota.engine.reconciler import Command
from rota.engine.state.mirror import Mirror
from rota.model.ids import JobId, NodeId
from rota.model.job import JobSpec
from rota.model.messages import AttemptReport, Hello, JobReports, NodeReport, ReportedState
from rota.model.node import Connection, NodeSpec
from rota.model.plan import Instant, Plan
from rota.model.view import View
from rota.scheduler import plan as scheduler
from rota.scheduler.cluster_fit import FitCalculator
from rota.store import codec
from rota.watcher import liveness, node_messages
from rota.watcher.dispatch import DispatchState

NODE = NodeId("n1")
RAN_US = 1_000
REPORT_TASKS = 40  # tasks that a node of two cores ends in one report interval


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    began = time.process_time()
    batches, encoded = run(count)
    spent_us = (time.process_time() - began) / count * 1e6
    print(f"deciding {count:,} tasks in {batches:,} batches:")
    print(f"  per task {spent_us:.1f} us of CPU and {encoded / count:.0f} B to write")


def run(count: int) -> tuple[int, int]:
    mirror = Mirror()
    reconcilers = [
        assign.reconciler(FitCalculator().cluster_fit),
        batch.RECONCILER,
        scheduler.reconciler(),
        liveness.reconciler(),
    ]
    loop = Loop(mirror, reconcilers)
    clock = iter(range(1, 10_000_000, 20))
    encoded = 0
    batches = 0

    def step(owner: str, command: Command[object]) -> None:
        nonlocal encoded, batches
        loop.ask(Request(owner, command, _ignore, _raise))
        ms = next(clock)
        decided = loop.decide(Instant(ms, ms))
        assert decided is not None
        assert not loop.parking.faults, loop.parking.faults[0].error
        encoded += sum(len(codec.encode(record)) for record in decided.puts.values())
        batches += 1

    capacity = {"cpu": 2000, "memory": 2**34, "disk": 2**40}
    hello = Hello("m", "b", "0", capacity, {}, 0, [])
    step("apiserver", lambda *_: Plan((NodeSpec(NODE, "one"),)))
    step("watcher", lambda view, now: node_messages.on_hello(view, NODE, hello, now))
    mirror.connect(NODE, Connection.UP)
    spec = JobSpec(JobId("1"), "true", ("true",), 0, count=count, needs={"cpu": 1000})
    step("apiserver", lambda *_: Plan((spec,)))
    dispatch = DispatchState([])
    queue: list[tuple[int, int]] = []
    job = mirror.jobs[spec.id]
    while job.status is None or not job.status.ended:
        for orders in dispatch.orders(mirror, NODE):
            queue += [(start.index, start.attempt) for start in orders.start]
        ended, queue = queue[:REPORT_TASKS], queue[REPORT_TASKS:]
        attempts = [
            AttemptReport(index, attempt, ReportedState.EXITED, 0, 0, 1, 2, RAN_US, 500, 2_000)
            for index, attempt in ended
        ]
        reports = [JobReports(spec.id, attempts)]
        dispatch.on_reports(reports)
        step("watcher", partial(_report, reports))
    return batches, encoded


def _report(reports: list[JobReports], view: View, now: Instant) -> Plan:
    return node_messages.on_report(view, NODE, NodeReport(1, reports), now)


def _ignore(answer: object) -> None:
    del answer


def _raise(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    main()
