"""A scenario script -> the same text with the events of each section below its `----`."""

import shlex
from enum import StrEnum
from typing import Any

from rota.model.amounts import CPU, parse_count, parse_cpu, parse_seconds, parse_size
from rota.model.cluster import BY_HAND, DEFAULT, NEVER_FAILS, ClusterIntent
from rota.model.cron import CronRecord, MissedRuns, Overlap
from rota.model.dependency import Dependency, DependencyCondition
from rota.model.errors import Rejected
from rota.model.ids import JobId
from rota.model.job import JobKind, JobSpec, Recovery, Unschedulable
from rota.model.limits import BLOCK_TASKS, COUNT_MAX
from rota.model.messages import ReportedState
from rota.model.node import Eligibility
from rota.model.recovery import Failure, Retry, WhenControllerAbsent
from rota.model.service import HealthCheck, ServiceStatus
from rota.model.shape import Constraint, Op, RunMode
from rota.model.view import state_of
from rota.rules.disruption import SilentNodes
from rota.rules.phases import Phase
from rota.scheduler.explain.why import explain_job
from rota.testing import stage_provider, user_requests
from rota.testing.builders import WALL_MS, job_spec
from rota.testing.stage import Stage, StageMachine

RULE = "----"
_SIZES = ("memory", "disk")
_CHOICES: dict[str, type[StrEnum]] = {
    "kind": JobKind,
    "run": RunMode,
    "recovery": Recovery,
    "when_no_controller": WhenControllerAbsent,
    "when_unschedulable": Unschedulable,
}
_DAY_SECONDS = 86_400.0
_TIMES = ("timeout", "queue_timeout", "deadline", "keep")
_CAUSES = ("retry_on", "fail_on")


def replay(text: str) -> str:
    """Run a script and return it with its events; empty lines divide sections, # starts a comment."""
    script = _Script()
    return "\n\n".join(script.section(section) for section in text.strip("\n").split("\n\n")) + "\n"


class _Script:
    """The commands of a script: `verb argument ...` calls do_verb(argument, ...)."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._stage = Stage(self._lines.append)

    def section(self, text: str) -> str:
        commands = text.partition(f"\n{RULE}")[0].splitlines()
        self._lines.clear()
        for line in commands:
            if not line.startswith("#"):
                verb, *arguments = shlex.split(line)
                getattr(self, f"do_{verb}")(*arguments)
        return "\n".join([*commands, RULE, *self._lines])

    # ---- nodes

    def do_node(self, name: str, *settings: str) -> None:
        given = dict(setting.split("=", 1) for setting in settings)
        self._stage.join(_machine(name, given), given.get("cluster", DEFAULT))

    # ---- clusters

    def do_cluster(self, name: str, *settings: str) -> None:
        """Set the intent of a cluster: provider=p min=0 max=4 idle=60s type=gpu region=eu cpu=2."""
        given = dict(setting.split("=", 1) for setting in settings)
        self._stage.put(_cluster_intent(name, given))

    def do_provide(self, name: str, *settings: str) -> None:
        """The provider creates a requested machine, which joins."""
        stage_provider.provide(
            self._stage, _machine(name, dict(setting.split("=", 1) for setting in settings))
        )

    def do_ask(self, name: str) -> None:
        """The provider is asked for a machine that never joins."""
        stage_provider.ask(self._stage, name)

    def do_fail(self, name: str, *reason: str) -> None:
        stage_provider.fail(self._stage, name, " ".join(reason))

    def do_keep(self, name: str, *reason: str) -> None:
        """The provider is asked to remove a machine and fails."""
        stage_provider.keep(self._stage, name, " ".join(reason))

    def do_remove(self, name: str) -> None:
        stage_provider.remove(self._stage, name)

    def do_clusters(self) -> None:
        """Show each cluster and its machines."""
        mirror = self._stage.mirror
        for name, cluster in mirror.clusters.items():
            machines = [
                f"{machine.name} {machine.state}"
                for machine in mirror.machines.values()
                if machine.cluster == name
            ]
            self._lines.append(f"{name} is {cluster.state}: {', '.join(machines) or 'no machines'}")

    def do_cut(self, *names: str) -> None:
        for name in names:
            self._stage.cut(self._machine(name))

    def do_back(self, *names: str) -> None:
        for name in names:
            self._stage.call(self._machine(name))

    def do_crash(self, name: str) -> None:
        self._machine(name).crash()
        self._stage.cut(self._machine(name))

    def do_silence(self, name: str) -> None:
        self._machine(name).silent = True

    def do_deaf(self, name: str) -> None:
        self._machine(name).deaf = True

    def do_speak(self, name: str) -> None:
        self._stage.end_silence(self._machine(name))

    def do_leave(self, name: str, *reason: str) -> None:
        self._stage.leave(self._machine(name), " ".join(reason))

    def do_refuse(self, name: str, *reason: str) -> None:
        self._machine(name).refuses = " ".join(reason)

    def do_accept(self, name: str) -> None:
        self._machine(name).refuses = None

    def do_cordon(self, name: str) -> None:
        self._stage.set_eligibility(name, Eligibility.CORDONED)

    def do_drain(self, name: str, within: str | None = None, everything: str = "") -> None:
        self._stage.drain(name, None if within is None else _ms(within), everything=bool(everything))

    def do_delete(self, name: str) -> None:
        self._stage.forget(self._machine(name))

    def do_open(self, name: str) -> None:
        self._stage.set_eligibility(name, Eligibility.OPEN)

    def do_brake(self, action: str = "") -> None:
        """Show the brake, or release it with `release`."""
        if action == "release":
            self._stage.release_brake()
        else:
            self._lines.append(SilentNodes(self._stage.mirror).worst(self._stage.mirror).sentence)

    def do_nodes(self, count: str, *settings: str) -> None:
        """Add `count` equal nodes: n1, n2, ..."""
        for number in range(1, int(count) + 1):
            self.do_node(f"n{number}", *settings)

    # ---- jobs

    def do_job(self, number: str, *settings: str) -> None:
        self._stage.submit(_spec(int(number), dict(setting.split("=", 1) for setting in settings)))

    def do_end(self, ref: str, code: str = "0", ran: str = "60s") -> None:
        """End one task or every running task of a job; code `overtime`: killed at its time limit."""
        job, _, index = ref.partition(".")
        for machine in self._stage.machines.values():
            for task, held in list(machine.held.items()):
                if task[0] == job and index in ("", str(task[1])) and held.state is ReportedState.RUNNING:
                    machine.end(task, None if code == "overtime" else int(code), _ms(ran))
        self._stage.run_to_quiescence()

    def do_update(self, job: str, *settings: str) -> None:
        """Update a job and replace its running tasks; settings are fields, or entries as env.COLOUR=red."""
        given = dict(setting.split("=", 1) for setting in settings)
        most = given.pop("max_parallel", None)
        changes: dict[str, Any] = {}
        for name, value in given.items():
            table, _, entry = name.partition(".")
            parsed = {"true": True, "false": False}.get(value, value)
            if entry:
                changes.setdefault(table, {})[entry] = parsed
            else:
                changes[table] = parsed
        self._stage.update(JobId(job), changes, None if most is None else int(most))

    def do_count(self, job: str, count: str) -> None:
        user_requests.resize(self._stage, JobId(job), int(count))

    def do_move(self, ref: str, to: str | None = None) -> None:
        """Move one task or every placed task of a job to a node, or away from its own."""
        job, _, index = ref.partition(".")
        try:
            user_requests.move(self._stage, JobId(job), [int(index)] if index else None, to)
        except Rejected as refusal:
            self._lines.append(f"refused: {refusal}")

    def do_pause(self, job: str, stop: str = "") -> None:
        user_requests.pause(self._stage, JobId(job), stop=bool(stop))

    def do_resume(self, job: str) -> None:
        user_requests.resume(self._stage, JobId(job))

    def do_rerun(self, job: str, failed: str = "") -> None:
        user_requests.rerun(self._stage, JobId(job), failed=bool(failed))

    def do_life(self, ref: str, *settings: str) -> None:
        """A node reports the status of a task of a service: restarts=2 code=1 health=down."""
        job, _, index = ref.partition(".")
        given = dict(setting.split("=", 1) for setting in settings)
        status = ServiceStatus(
            int(given.get("restarts", 0)),
            int(given.get("code", -1)),
            health=given["health"],
            why=given.get("why"),
        )
        for machine in self._stage.machines.values():
            machine.report_service_status((JobId(job), int(index)), status)
        self._stage.run_to_quiescence()

    def do_release(self, job: str) -> None:
        self._stage.release(JobId(job))

    def do_cancel(self, job: str, *reason: str) -> None:
        self._stage.cancel(JobId(job), " ".join(reason) or None)

    def do_say(self, decision: str, ref: str, attempt: str) -> None:
        """The recovery controller of a job decides on a lost attempt."""
        job, _, index = ref.partition(".")
        try:
            self._stage.answer(JobId(job), int(index), int(attempt), decision)
        except Rejected as refusal:
            self._lines.append(f"refused: {refusal}")

    def do_watch(self, owner: str) -> None:
        self._stage.watch(owner)

    def do_unwatch(self, owner: str) -> None:
        self._stage.disconnect(owner)

    def do_cron(self, name: str, schedule: str, *settings: str) -> None:
        given = dict(setting.split("=", 1) for setting in settings)
        rules: dict[str, Any] = {
            "zone": given.get("zone", "UTC"),
            "overlap": Overlap(given.get("overlap", "skip")),
            "missed": MissedRuns(given.get("missed", "once")),
            "history": int(given.get("history", "10")),
        }
        template = job_spec(0, name=name)
        at_ms = self._stage.now.wall_ms
        self._stage.put(CronRecord("default", name, schedule, template, created_at_ms=at_ms, **rules))

    def do_clock(self, shift: str) -> None:
        """Set the wall clock forward, or back with a minus sign."""
        back = shift.startswith("-")
        self._stage.wall_shift_ms += _ms(shift.lstrip("-")) * (-1 if back else 1)
        self._stage.run_to_quiescence()

    def do_runs(self, name: str) -> None:
        """Show the runs of a cron."""
        status = self._stage.mirror.cron_statuses[f"default/{name}"]
        jobs = self._stage.mirror.jobs
        runs = [f"{jobs[run.job].spec.name} {state_of(self._stage.mirror, run.job)}" for run in status.runs]
        self._lines.append(f"{name}: {', '.join(runs) or 'nothing'}; {status.skipped} skipped")

    # ---- the control plane

    def do_wait(self, duration: str) -> None:
        self._stage.wait(_ms(duration))

    def do_stall(self, duration: str) -> None:
        self._stage.stall(_ms(duration))

    def do_restart(self, forgetting: str = "") -> None:
        """Restart the server; with `forgetting` its memory store has lost every job."""
        if forgetting:
            self._stage.restart_without_jobs()
        else:
            self._stage.restart()

    # ---- questions

    def do_why(self, job: str) -> None:
        answer = explain_job(self._stage.mirror, JobId(job), self._stage.now)
        self._lines.append(f"job {job} {answer.sentence}")
        self._lines += [f"  - {reason.text}" for reason in answer.reasons]
        self._lines += [f"  > {change}" for change in answer.changes]

    def do_show(self, number: str) -> None:
        """Show the phase and the node of each task."""
        job = self._stage.mirror.jobs[JobId(number)]
        nodes = {
            task[1]: f" on {name}, attempt {attempt}"
            for name, entry in self._stage.mirror.nodes.items()
            for task, attempt in entry.assigned.items()
            if task[0] == number
        }
        for index in range(job.spec.count):
            block, position = divmod(index, BLOCK_TASKS)
            phase = Phase(job.phases[block][position]) if block in job.phases else Phase.PENDING
            self._lines.append(f"{number}.{index} {phase.name.lower()}{nodes.get(index, '')}")

    def do_holds(self, name: str) -> None:
        """Show the attempts that the machine itself holds."""
        held = self._machine(name).held
        tasks = [
            f"{job}.{index}.{attempt.attempt} {attempt.state.name.lower()}"
            for (job, index), attempt in held.items()
        ]
        self._lines.append(f"{name} holds {', '.join(tasks) or 'nothing'}")

    def _machine(self, name: str) -> StageMachine:
        return self._stage.machines[name]


def _machine(name: str, given: dict[str, str]) -> StageMachine:
    capacity = _amounts(given)
    return StageMachine(
        name, capacity, {key: given[key] for key in given if key not in (*capacity, "cluster")}
    )


def _cluster_intent(name: str, given: dict[str, str]) -> ClusterIntent:
    return ClusterIntent(
        name,
        given.get("type", DEFAULT),
        given.get("region"),
        provider=given.get("provider", BY_HAND),
        capacity=_amounts({key: value for key, value in given.items() if key in ("cpu", "memory", "gpu")}),
        min_nodes=int(given.get("min", 0)),
        max_nodes=int(given.get("max", 0)),
        nodes=int(given["nodes"]) if "nodes" in given else None,
        idle_seconds=parse_seconds("idle", given.get("idle", "60s"), _DAY_SECONDS),
        join_seconds=parse_seconds("join", given.get("join", "120s"), _DAY_SECONDS),
        fail_after_seconds=_fail_after(given.get("fail_after")),
        drain="drain" in given or "end" in given,
        end="end" in given,
    )


def _fail_after(given: str | None) -> float | None:
    if given is None:
        return None
    return NEVER_FAILS if given == "never" else parse_seconds("fail_after", given, _DAY_SECONDS)


def _spec(number: int, given: dict[str, str]) -> JobSpec:
    fields: dict[str, object] = {"needs": _amounts(given) or {"cpu": 1000}}
    fields |= {
        name: value for key in given if key in _TIMES for name, value in _time(key, given[key]).items()
    }
    fields |= {key: given[key] for key in ("cluster",) if key in given}
    fields |= {key: given[key] == "true" for key in ("gang",) if key in given}
    fields["retry"] = _retry(*(given.get(key, "").split(",") for key in _CAUSES))
    for key, value in given.items():
        match key:
            case "tasks":
                fields["count"] = parse_count(key, value, 1, COUNT_MAX)
            case "parallel" | "priority" | "retries":
                fields[key] = parse_count(key, value, 0, COUNT_MAX)
            case "after":
                fields[key] = tuple(
                    Dependency(JobId(job), DependencyCondition(on or "success"))
                    for job, _, on in _split(value)
                )
            case "controller" | "check":
                fields |= _controller(value) if key == "controller" else {key: HealthCheck(command=(value,))}
            case _ if key in _CHOICES:
                fields[key] = _CHOICES[key](value)
            case "where":
                label, _, expected = value.partition("==")
                fields[key] = (Constraint(label, Op.EQUAL, (expected,)),)
            case _:
                known = (*_TIMES, *_CAUSES, *_amounts(given), *fields)
                assert key in known, f"job {number}: what is {key}?"
    return job_spec(number, **fields)


def _retry(again: list[str], never: list[str]) -> Retry:
    """Retry rules: exit codes, and for retries also kinds of failures."""
    codes, final = (tuple(int(cause) for cause in causes if cause.isdecimal()) for causes in (again, never))
    return Retry(tuple(Failure(cause) for cause in again if cause.isalpha()), codes, final)


def _controller(value: str) -> dict[str, object]:
    """Parse user:name."""
    user, _, name = value.partition(":")
    return {"user": user, "controller": name}


def _time(key: str, value: str) -> dict[str, object]:
    if key == "deadline":
        return {"deadline_at_ms": WALL_MS + _ms(value)}
    return {f"{key}_seconds": parse_seconds(key, value, _DAY_SECONDS)}


def _split(value: str) -> list[tuple[str, str, str]]:
    """Parse a list such as 1,2:failure."""
    return [item.partition(":") for item in value.split(",")]


def _amounts(given: dict[str, str]) -> dict[str, int]:
    found = {key: parse_size(key, given[key]) for key in _SIZES if key in given}
    if CPU in given:
        found[CPU] = parse_cpu(CPU, given[CPU])
    if "gpu" in given:
        found["gpu"] = int(given["gpu"])
    return found


def _ms(duration: str) -> int:
    return round(parse_seconds("duration", duration, _DAY_SECONDS) * 1000)
