"""Random users and machines on a stage: each method do_VERB is one kind of step."""

from collections.abc import Callable
from random import Random

from rota.apiserver.access import Caller
from rota.apiserver.admission import (
    actions,
    crons,
    move,
    namespaces,
    recovery,
    rerun,
    restart,
    submission,
    update,
)
from rota.apiserver.admission.node_actions import (
    delete_node,
    drain_node,
    release_brake,
    set_node_eligibility,
    taint_node,
)
from rota.apiserver.admission.update import rollback_job
from rota.engine.time_zones import zone
from rota.identity.tokens import Role
from rota.model.cron import MissedRuns, Overlap
from rota.model.errors import Rejected
from rota.model.ids import JobId
from rota.model.limits import WALL_CLOCK_CHECK_MS
from rota.model.messages import ReportedState
from rota.model.node import Eligibility
from rota.model.plan import Instant, Plan
from rota.model.recovery import RecoveryDecision
from rota.model.service import Health, ServiceStatus
from rota.model.view import View
from rota.scheduler.explain.move_check import why_not_moved
from rota.testing.stage import Stage, StageMachine
from tests.fuzz import jobs

USER = Caller("user", Role.ADMIN, ("*",))
MOVE = move.move_admission(why_not_moved)
NODES_MAX = 6
JOBS_MAX = 25  # unfinished jobs; beyond that a submit cancels one first, to keep steps cheap
END_SECONDS = 900  # of cluster time, for everything to end after it was canceled

# Relative frequency of each step. The names are stored in corpus.txt, and their order determines histories.
WEIGHTS = {
    "submit": 20,
    "end": 14,
    "update": 12,
    "wait": 12,
    "pause": 5,
    "resume": 6,
    "cancel": 4,
    "kill": 3,
    "restart_tasks": 3,
    "move_tasks": 6,
    "rollback": 2,
    "release": 1,
    "resolve": 2,
    "rerun": 2,
    "delete": 4,
    "namespace": 1,
    "cron": 2,
    "watch": 1,
    "join": 3,
    "life": 3,
    "cut": 3,
    "crash": 3,
    "call": 6,
    "silence": 2,
    "deaf": 1,
    "refuse": 3,
    "leave": 1,
    "wish": 3,
    "drain": 2,
    "taint": 1,
    "delete_node": 3,
    "release_brake": 1,
    "stall": 1,
    "clock": 1,
    "restart": 2,
    "keeper_dies": 2,
}
_CAPACITIES = (
    {"cpu": 4000, "memory": 2**32, "gpu": 2000},
    {"cpu": 2000, "memory": 2**31, "disk": 2**30, "licence": 2},
    {"cpu": 8000, "memory": 2**33, "gpu": 4000, "licence": 1},
)
_LABELS = ({"zone": "a", "leases": "yes"}, {"zone": "b", "region": "eu"}, {"zone": "a", "gpu_model": "small"})


class FuzzWorld:
    """A stage with random users and nodes."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.has_changed = False  # whether the last step changed what the server knows
        self._joined = 0

    def do(self, verb: str, rng: Random) -> str:
        """Run one step to quiescence; return its description."""
        before = self._known()
        description: str = getattr(self, f"do_{verb}")(rng)
        self.stage.run_to_quiescence()
        self.has_changed = verb == "watch" or self._known() != before
        return description

    def end_everything(self) -> None:
        """Cancel everything and reconnect every node, and wait until all jobs have ended."""
        for cron in list(self.stage.mirror.crons.values()):
            self._delete_cron((cron.namespace, cron.name))
        for machine in self.stage.machines.values():
            machine.refuses, machine.deaf, machine.silent = None, False, False
            self.stage.call(machine)
        for job in self.open_jobs():
            self._cancel(job)
        for _ in range(END_SECONDS):
            if not self.stage.mirror.unfinished:
                return
            self.stage.wait(1000)

    def _delete_cron(self, ref: tuple[str, str]) -> bool:
        return self.ask(lambda view, _: crons.delete(view, ref, USER))

    def _cancel(self, job: JobId) -> bool:
        return self.ask(lambda view, now: actions.cancel(view, job, {}, USER, now))

    def _delete(self, job: JobId) -> bool:
        return self.ask(lambda view, _: submission.delete_job(view, job, USER))

    # ---- users

    def do_submit(self, rng: Random) -> str:
        body = jobs.job(rng)
        if len(open_ := self.open_jobs()) >= JOBS_MAX:
            self._cancel(open_[0])
        key = rng.choice((None, None, f"key-{rng.randrange(5)}"))
        return self._run(body, lambda view, now: submission.submit_job(view, body, USER, key, now))

    def do_update(self, rng: Random) -> str:
        patch = jobs.patch(rng)
        most = rng.choice((None, None, 1, 2))
        request = update.UpdateRequest(patch, None, rng.random() < 0.4, most)
        return self._of_job(
            rng, request, lambda view, job, now: update.update_job(view, job, request, USER, now)
        )

    def do_cancel(self, rng: Random) -> str:
        body = self._indices(rng)
        return self._of_job(rng, body, lambda view, job, now: actions.cancel(view, job, body, USER, now))

    def do_kill(self, rng: Random) -> str:
        signal = rng.choice(({}, {"signal": "USR1", "key": "k"}))
        body = self._indices(rng) | signal
        return self._of_job(rng, body, lambda view, job, now: actions.kill(view, job, body, USER, now))

    def do_pause(self, rng: Random) -> str:
        body = {"stop": rng.random() < 0.6}
        return self._of_job(rng, body, lambda view, job, now: actions.pause(view, job, body, USER, now))

    def do_resume(self, rng: Random) -> str:
        return self._of_job(rng, {}, lambda view, job, now: actions.resume(view, job, {}, USER, now))

    def do_restart_tasks(self, rng: Random) -> str:
        body = self._indices(rng)
        return self._of_job(
            rng, body, lambda view, job, now: restart.restart_tasks(view, job, body, USER, now)
        )

    def do_move_tasks(self, rng: Random) -> str:
        machine = self._machine(rng)
        to = None if machine is None or rng.random() < 0.5 else machine.name
        body = {**self._indices(rng), "to": to}
        return self._of_job(rng, body, lambda view, job, now: MOVE(view, job, body, USER, now))

    def do_rollback(self, rng: Random) -> str:
        return self._of_job(rng, {}, lambda view, job, now: rollback_job(view, job, {}, USER, now))

    def do_release(self, rng: Random) -> str:
        return self._of_job(rng, {}, lambda view, job, now: restart.release_tasks(view, job, {}, USER, now))

    def do_resolve(self, rng: Random) -> str:
        body = {"word": rng.choice(list(RecoveryDecision)).value} | self._indices(rng)
        return self._of_job(
            rng, body, lambda view, job, now: recovery.resolve_losses_by_user(view, job, body, USER, now)
        )

    def do_rerun(self, rng: Random) -> str:
        selection = rerun.RerunSelection({"failed": rng.random() < 0.5})
        return self._of_job(
            rng, selection, lambda view, job, now: rerun.rerun_job(view, job, selection, USER, now)
        )

    def do_delete(self, rng: Random) -> str:
        """Delete some ended jobs, to keep histories cheap, or one that may be live."""
        ended = [job for job, entry in self.stage.mirror.jobs.items() if entry.status and entry.status.ended]
        if not ended or rng.random() < 0.3:
            return self._of_job(rng, {}, lambda view, job, _: submission.delete_job(view, job, USER))
        chosen = rng.sample(ended, min(len(ended), 20))
        return f"jobs {[job for job in chosen if self._delete(job)]}"

    def do_namespace(self, rng: Random) -> str:
        name = rng.choice(("default", "team"))
        if rng.random() < 0.4:
            return self._run(name, lambda view, _: namespaces.delete_namespace(view, name, USER))
        body = {
            "quota": {"cpu": rng.choice((2, 8))},
            "weight": rng.choice((1, 3)),
            "defaults": {"memory": "1m"},
        }
        return self._run(body, lambda view, _: namespaces.set_namespace(view, name, body, USER))

    def do_cron(self, rng: Random) -> str:
        name = rng.choice(("nightly", "often"))
        if rng.random() < 0.4:
            return self._run(f"delete {name}", lambda view, _: crons.delete(view, ("default", name), USER))
        template = {"command": ["true"], **rng.choice(jobs.KINDS[:4])}
        rules = {"overlap": rng.choice(list(Overlap)).value, "missed": rng.choice(list(MissedRuns)).value}
        schedule = rng.choice(("* * * * *", "*/5 * * * *"))
        if rules["missed"] == MissedRuns.ALL:  # a clock set forward by a day would create 1,000 jobs at once
            schedule = "*/30 * * * *"
        body = {"name": name, "schedule": schedule, "job": template, **rules}
        return self._run(body, lambda view, now: crons.create(view, body, USER, zone, now))

    def do_watch(self, rng: Random) -> str:
        """The recovery controller of some jobs connects or disconnects."""
        owner = f"{USER.name}:{jobs.CONTROLLER}"
        connects = rng.random() < 0.5
        (self.stage.watch if connects else self.stage.disconnect)(owner)
        return f"controller {'connects' if connects else 'disconnects'}"

    # ---- nodes

    def do_join(self, rng: Random) -> str:
        if len(self.stage.machines) >= NODES_MAX:
            return "there are enough nodes"
        self._joined += 1
        machine = StageMachine(f"n{self._joined}", dict(rng.choice(_CAPACITIES)), dict(rng.choice(_LABELS)))
        self.stage.join(machine)
        return f"{machine.name} joins with {machine.capacity} {machine.labels}"

    def do_end(self, rng: Random) -> str:
        """Some running tasks end by themselves."""
        code = rng.choice((0, 0, 0, 1, 2, None))
        running = [
            (machine, task)
            for machine in self.stage.machines.values()
            for task, held in machine.held.items()
            if held.state is ReportedState.RUNNING
        ]
        chosen = rng.sample(running, min(len(running), rng.choice((1, 1, 2, 5, 20))))
        for machine, task in chosen:
            if task in machine.held:
                machine.end(task, code, rng.choice((1, 1000, 100_000)))
        self.stage.run_to_quiescence()
        return f"{[f'{machine.name} {task[0]}.{task[1]}' for machine, task in chosen]} end with {code}"

    def do_life(self, rng: Random) -> str:
        status = ServiceStatus(rng.randrange(4), rng.choice((-1, 1)), health=rng.choice(list(Health)).value)

        def report(machine: StageMachine) -> None:
            known = self.stage.mirror.jobs  # a reconnected machine may hold attempts of a deleted job
            for task in list(machine.held):
                if task[0] in known and known[task[0]].spec.is_service:
                    machine.report_service_status(task, status)

        return self._of_node(rng, f"reports {status} for its services", report)

    def do_cut(self, rng: Random) -> str:
        return self._of_node(rng, "loses its connection", self.stage.cut)

    def do_crash(self, rng: Random) -> str:
        def crash(machine: StageMachine) -> None:
            machine.crash()
            self.stage.cut(machine)
            if rng.random() < 0.6:
                self.stage.call(machine)

        return self._of_node(rng, "reboots", crash)

    def do_keeper_dies(self, rng: Random) -> str:
        wall_ms = self.stage.now.wall_ms
        return self._of_node(
            rng, "loses its keeper and all attempts", lambda machine: machine.lose_keeper(wall_ms)
        )

    def do_call(self, rng: Random) -> str:
        return self._of_node(rng, "connects", self.stage.call)

    def do_silence(self, rng: Random) -> str:
        def change(machine: StageMachine) -> None:
            machine.silent = not machine.silent

        return self._of_node(rng, "falls silent, or is connected again", change)

    def do_deaf(self, rng: Random) -> str:
        def change(machine: StageMachine) -> None:
            machine.deaf = not machine.deaf

        return self._of_node(rng, "ignores orders, or applies them again", change)

    def do_refuse(self, rng: Random) -> str:
        def change(machine: StageMachine) -> None:
            machine.refuses = None if machine.refuses else "no such directory"

        return self._of_node(rng, "refuses everything, or nothing", change)

    def do_leave(self, rng: Random) -> str:
        return self._of_node(rng, "leaves", lambda machine: self.stage.leave(machine, "maintenance"))

    def do_wish(self, rng: Random) -> str:
        eligibility = rng.choice((Eligibility.OPEN, Eligibility.OPEN, Eligibility.CORDONED))
        machine = self._machine(rng)
        name = machine.name if machine else "n1"
        return self._run(
            f"{name} {eligibility}", lambda view, _: set_node_eligibility(view, name, eligibility, USER)
        )

    def do_drain(self, rng: Random) -> str:
        body = rng.choice(
            ({}, {"deadline_seconds": 10}, {"force": True}, {"deadline_seconds": 60, "force": True})
        )
        machine = self._machine(rng)
        name = machine.name if machine else "n1"
        return self._run(f"{name} {body}", lambda view, now: drain_node(view, name, body, USER, now))

    def do_taint(self, rng: Random) -> str:
        body = rng.choice(({"taint": ["dedicated=ci"]}, {"untaint": ["dedicated"]}))
        machine = self._machine(rng)
        name = machine.name if machine else "n1"
        return self._run(f"{name} {body}", lambda view, _: taint_node(view, name, body, USER))

    def do_delete_node(self, rng: Random) -> str:
        machine = self._machine(rng)
        if machine is None:
            return "there is no node"
        outcome = self._run(machine.name, lambda view, _: delete_node(view, machine.name, USER))
        if not outcome.endswith("refused"):
            del self.stage.machines[machine.name]
        return outcome

    def do_release_brake(self, rng: Random) -> str:
        del rng
        return self._run("brake", lambda view, now: release_brake(view, {}, USER, now))

    # ---- time and the server

    def do_wait(self, rng: Random) -> str:
        ms = rng.choice((1, 500, 1000, 5000, 15_000, 40_000, 120_000))
        self.stage.wait(ms)
        return f"{ms} ms pass"

    def do_stall(self, rng: Random) -> str:
        ms = rng.choice((6000, 60_000))
        self.stage.stall(ms)
        return f"the server stalls for {ms} ms"

    def do_clock(self, rng: Random) -> str:
        ms = rng.choice((-3_600_000, -60_000, 60_000, 3_600_000, 86_400_000))
        self.stage.wall_shift_ms += ms
        self.stage.wait(WALL_CLOCK_CHECK_MS)  # the server notices at its next check of the clock
        return f"the wall clock is set by {ms} ms"

    def do_restart(self, rng: Random) -> str:
        self.stage.restart()
        for machine in list(self.stage.machines.values()):
            if rng.random() < 0.8:
                self.stage.call(machine)
        return "the server restarts; most nodes connect"

    # ---- steps

    def _known(self) -> object:
        """Records, observations of nodes, and the time."""
        stage = self.stage
        nodes = {name: (node.connection, node.last_seen_at_ms) for name, node in stage.mirror.nodes.items()}
        return dict(stage.records), nodes, stage.now, id(stage.mirror)

    def ask(self, command: Callable[[View, Instant], Plan[object]]) -> bool:
        try:
            self.stage.ask("apiserver", command)
        except Rejected:
            return False
        self.stage.run_to_quiescence()
        return True

    def _run(self, what: object, command: Callable[[View, Instant], Plan[object]]) -> str:
        return f"{what}{'' if self.ask(command) else ' is refused'}"

    def _of_job(
        self, rng: Random, what: object, command: Callable[[View, str, Instant], Plan[object]]
    ) -> str:
        known = list(self.stage.mirror.jobs)
        if not known:
            return "there is no job"
        open_ = self.open_jobs()
        job = rng.choice(open_ if open_ and rng.random() < 0.8 else known)
        return self._run(f"job {job} {what}", lambda view, now: command(view, job, now))

    def _of_node(self, rng: Random, what: str, change: Callable[[StageMachine], None]) -> str:
        machine = self._machine(rng)
        if machine is None:
            return "there is no node"
        change(machine)
        self.stage.run_to_quiescence()
        return f"{machine.name} {what}"

    def _machine(self, rng: Random) -> StageMachine | None:
        machines = list(self.stage.machines.values())
        return rng.choice(machines) if machines else None

    def open_jobs(self) -> list[JobId]:
        known = self.stage.mirror.jobs.items()
        return [job for job, entry in known if entry.status is None or not entry.status.ended]

    def _indices(self, rng: Random) -> dict[str, object]:
        return {} if rng.random() < 0.5 else {"indices": rng.sample(range(4), rng.choice((1, 2)))}
