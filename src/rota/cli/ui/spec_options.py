"""Flags and a job file -> the spec of a job; flags win. The server checks the values and names the field."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rota.cli.ui.arguments import array, codes, pairs
from rota.cli.ui.job_file import read_job_file

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "-f", "--file", metavar="FILE", help="Read the job from a .toml, .yaml or .json file, or - (stdin)."
    ),
    click.option("-n", "--name", help="The job's name. [default: that of the program]"),
    click.option("--namespace", help="The namespace. [default: ROTA_NAMESPACE, or default]"),
    click.option("-c", "--cpu", metavar="CORES", help="Cores per task, as 2 or 0.5. [default: 1]"),
    click.option("-m", "--memory", metavar="SIZE", help="Memory per task, as 512m, 4g or 1.5Gi."),
    click.option("--disk", metavar="SIZE", help="Disk per task."),
    click.option("--gpu", metavar="N", help="GPUs per task: 2, or 0.5 for half of one."),
    click.option("--gpu-model", metavar="MODEL", help="Nodes with this kind of GPU only."),
    click.option(
        "--resource", multiple=True, metavar="NAME=N", help="Any other thing nodes have; repeatable."
    ),
    click.option(
        "--limit",
        multiple=True,
        metavar="NAME=N",
        help="The most a task gets: memory=1g, cpu=2, pids=100; repeatable. [default: memory as asked for]",
    ),
    click.option(
        "--where", multiple=True, metavar="RULE", help="Which nodes, as 'region == eu'; repeatable."
    ),
    click.option("--region", help="Nodes of this region only."),
    click.option(
        "--cluster",
        "in_cluster",
        metavar="NAME",
        help="This cluster only. [default: the one that suits best]",
    ),
    click.option("--on", metavar="NODE", help="This node only."),
    click.option(
        "--prefer", multiple=True, metavar="RULE", help="Rather there, as 'ssd exists weight 20'; repeatable."
    ),
    click.option(
        "--near", multiple=True, metavar="RULE", help="Where such jobs run, as 'job == db'; repeatable."
    ),
    click.option(
        "--apart",
        multiple=True,
        metavar="RULE",
        help="Where no such jobs run, as 'app == web over rack'; repeatable.",
    ),
    click.option(
        "--spread",
        multiple=True,
        metavar="LABEL",
        help="Its tasks evenly over a label's values, as 'region' or 'rack skew 2'; repeatable.",
    ),
    click.option(
        "--tolerate", multiple=True, metavar="TAINT", help="Also nodes with this taint, or '*'; repeatable."
    ),
    click.option("--pack", is_flag=True, help="Onto the fullest node that fits, not the idlest."),
    click.option("--noise", metavar="KIND", help="Away from work that disturbs in the same way, as 'disk'."),
    click.option(
        "--kind", metavar="KIND", help="batch, service, or system: kept running on every node that fits."
    ),
    click.option("--every-node", is_flag=True, help="The same as --kind system."),
    click.option("--count", type=int, metavar="N", help="Number of tasks. [default: 1]"),
    click.option("--array", metavar="0-99%8", help="Tasks 0 to 99, at most 8 at once."),
    click.option("--service", is_flag=True, help="Keep it running until it is canceled; does not wait."),
    click.option("--check-http", metavar="PORT/PATH", help="A service is well if this answers: 8080/health."),
    click.option("--check-tcp", metavar="PORT", help="A service is well if this port takes connections."),
    click.option("--check-command", metavar="COMMAND", help="A service is well if this exits with 0."),
    click.option(
        "--rollout",
        multiple=True,
        metavar="NAME=VALUE",
        help="How a newer version of a service replaces it: max_parallel, healthy, deadline, rollback.",
    ),
    click.option("--stop-signal", metavar="SIGNAL", help="Asks it to end, as INT. [default: TERM]"),
    click.option(
        "--after",
        multiple=True,
        metavar="JOB[:ON]",
        help="Begin once this job has ended: on success (the default), failure or any; repeatable.",
    ),
    click.option("--gang", is_flag=True, help="All tasks start together, or none."),
    click.option(
        "--retry", type=int, metavar="N", help="How often a failed task is tried again. [default: 0]"
    ),
    click.option(
        "--retry-on",
        metavar="WHAT",
        help="Only after these: exit codes, signal, oom, timeout, as 75,oom. [default: any failure]",
    ),
    click.option("--fail-on", metavar="CODES", help="Never after these exit codes, as 2,64-78."),
    click.option(
        "--retry-delay", metavar="DURATION", help="Before the first retry; then doubled. [default: 1s]"
    ),
    click.option("--timeout", metavar="DURATION", help="Time limit per attempt, as 90s or 2h30m."),
    click.option("--queue-timeout", metavar="DURATION", help="How long a task may wait to be started."),
    click.option("--grace", metavar="DURATION", help="Time between SIGTERM and SIGKILL. [default: 10s]"),
    click.option("--priority", type=int, metavar="0-100", help="Higher goes first. [default: 50]"),
    click.option("--expect", metavar="DURATION", help="How long a task runs, as far as you know."),
    click.option(
        "--deadline", metavar="WHEN", help="Over by then: 2h from now, or 2026-12-01T08:00:00+01:00."
    ),
    click.option("--stay", is_flag=True, help="Never change over to another cluster while it waits."),
    click.option("--not-preemptible", is_flag=True, help="Never give way to higher priorities."),
    click.option(
        "--evict-at-most", type=int, metavar="N", help="At most so many of its tasks give way at once."
    ),
    click.option(
        "--env", multiple=True, metavar="K=V", help="A variable, or K to hand on this shell's; repeatable."
    ),
    click.option(
        "--send",
        multiple=True,
        metavar="FILE[:PATH]",
        help="Put this file into the job's own directory, 256 KiB in all; repeatable.",
    ),
    click.option("--label", multiple=True, metavar="K=V", help="A label of the job; repeatable."),
    click.option("--image", metavar="IMAGE", help="Run in a container of this image."),
    click.option(
        "--mount",
        multiple=True,
        metavar="SRC:DST[:ro]",
        help="Let a container see this of the node; repeatable.",
    ),
    click.option(
        "--sandbox", is_flag=True, help="See the node read-only, without network or other processes."
    ),
    click.option("--workdir", metavar="DIR", help="Directory to run in. [default: the current one]"),
    click.option("--no-workdir", is_flag=True, help="Run in a fresh directory of the node's choice."),
    click.option(
        "--log-bytes", metavar="SIZE", help="Output kept of each stream. [default: as its node says]"
    ),
    click.option("--results", is_flag=True, help="Give its tasks a token to report their results by."),
    click.option("--results-by-agent", is_flag=True, help="Let the agents report the results of its tasks."),
    click.option("--keep", metavar="DURATION", help="How long it is remembered after its end."),
    click.option("--run-mode", metavar="MODE", help="at_least_once, one_at_a_time or at_most_once."),
    click.option(
        "--lease",
        metavar="DURATION",
        help="one_at_a_time: how long a task runs on without the server. [default: 20s]",
    ),
    click.option(
        "--when-unschedulable", metavar="WHAT", help="queue, reject or scale, when no node fits now."
    ),
    click.option(
        "--recovery",
        metavar="OWNER",
        help="Who deals with lost tasks: scheduler, controller, cancel or none. [default: scheduler]",
    ),
    click.option(
        "--controller", metavar="NAME", help="The controller that does, with --recovery controller."
    ),
    click.option("--when-no-controller", metavar="WHAT", help="wait or scheduler, while it is away."),
    click.option("--controller-wait", metavar="TIME", help="How long it may be away. [default: 60s]"),
)
# Flags whose value goes into the spec as it is, under the spec's own name for it.
_PLAIN = {
    "name": "name",
    "namespace": "namespace",
    "memory": "memory",
    "disk": "disk",
    "gpu_model": "gpu_model",
    "region": "region",
    "in_cluster": "cluster",
    "on": "on",
    "noise": "noise",
    "expect": "expect",
    "deadline": "deadline",
    "evict_at_most": "evict_at_most",
    "log_bytes": "log_bytes",
    "keep": "keep",
    "count": "count",
    "retry": "retries",
    "timeout": "timeout",
    "queue_timeout": "queue_timeout",
    "grace": "grace",
    "priority": "priority",
    "run_mode": "run",
    "lease": "lease",
    "when_unschedulable": "when_unschedulable",
    "recovery": "recovery",
    "controller": "controller",
    "when_no_controller": "when_no_controller",
    "controller_wait": "controller_wait",
    "image": "image",
    "stop_signal": "stop_signal",
    "kind": "kind",
}
# Flags that may be repeated: together they replace what the file says.
_LISTS = ("where", "prefer", "near", "apart", "spread", "tolerate", "after")
_CODES = ("retry_on", "fail_on")
# Flags without a value, and what they put into the spec.
_SWITCHES: dict[str, dict[str, Any]] = {
    "every_node": {"kind": "system"},
    "gang": {"gang": True},
    "results": {"results": True},
    "results_by_agent": {"results": "agent"},
    "service": {"kind": "service"},
    "pack": {"policy": "pack"},
    "not_preemptible": {"preemptible": False},
    "stay": {"move_pending": False},
}


def spec_options(function: Function) -> Function:
    """Adds every flag that describes a job."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def job_spec(
    flags: Mapping[str, Any],
    command: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole spec of one `rota run`; `before`: what a file said that is not the job's own."""
    spec = fields_said(flags, command, environ, before)
    if not spec.get("command") and not spec.get("steps"):
        raise click.UsageError("there is no command to run; write rota run -- PROGRAM ARGUMENTS")
    return {**spec, **_array(flags), **_workdir(flags, spec)}


def fields_said(
    flags: Mapping[str, Any],
    command: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Those that a file or flags name; a command may have some of the flags only."""
    spec = read_job_file(flags["file"]) if flags["file"] else dict(before or {})
    spec |= {field: flags[flag] for flag, field in _PLAIN.items() if flags.get(flag) is not None}
    spec |= {field: _number(flags[field]) for field in ("cpu", "gpu") if flags.get(field) is not None}
    spec |= {field: list(flags[field]) for field in _LISTS if flags.get(field)}
    for flag, said in _SWITCHES.items():
        spec |= said if flags.get(flag) else {}
    tables = {
        "labels": pairs(flags["label"], "--label"),
        "env": _env(flags["env"], environ),
        "resources": _amounts(flags.get("resource", ()), "--resource"),
        "limits": _amounts(flags["limit"], "--limit"),
        "files": files_to_send(flags.get("send", ())),
        "check": _check(flags),
        "rollout": _amounts(flags.get("rollout", ()), "--rollout"),
    }
    if flags.get("sandbox") and not spec.get("sandbox"):
        spec["sandbox"] = True
    for field, more in tables.items():
        if more:
            spec[field] = {**(spec.get(field) or {}), **more}
    spec |= _retry(flags, spec)
    if flags.get("mount"):
        spec["container"] = {**(spec.get("container") or {}), "mounts": list(flags["mount"])}
    return {**spec, "command": list(command)} if command else spec


def _check(flags: Mapping[str, Any]) -> dict[str, Any]:
    given = [flag for flag in ("check_http", "check_tcp", "check_command") if flags.get(flag)]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is enough; a service has one check")
    if not given:
        return {}
    said: str = flags[given[0]]
    match given[0]:
        case "check_http":
            port, sign, path = said.partition("/")
            return {"http": f"/{path}", "port": _number(port)} if sign else {"http": said}
        case "check_tcp":
            return {"tcp": _number(said)}
        case _:
            return {"command": shlex.split(said)}


def _retry(flags: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The flags win over the same thing in the file, also where that says it in its table `retry`."""
    said = {name: codes(flags[name], f"--{name.replace('_', '-')}") for name in _CODES if flags.get(name)}
    table = spec.get("retry") or {}
    if not isinstance(table, dict):
        return said  # the server says what would be accepted
    given = {"on": flags.get("retry_on"), "fail_on": flags.get("fail_on"), "attempts": flags.get("retry")}
    kept = {name: value for name, value in table.items() if given.get(name) is None}
    kept |= {"delay": flags["retry_delay"]} if flags.get("retry_delay") else {}
    return {**said, "retry": kept} if kept or table else dict(said)


def _amounts(said: Sequence[str], flag: str) -> dict[str, Any]:
    return {name: _number(amount) for name, amount in pairs(said, flag).items()}


def _array(flags: Mapping[str, Any]) -> dict[str, Any]:
    if not flags["array"]:
        return {}
    if flags["count"] is not None:
        raise click.UsageError("--array and --count say the same thing twice; leave one out")
    count, parallel = array(flags["array"])
    return {"count": count} | ({"parallel": parallel} if parallel else {})


def _workdir(flags: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    if flags["no_workdir"]:
        if flags["workdir"]:
            raise click.UsageError("--workdir and --no-workdir contradict each other")
        return {"workdir": None}
    if flags["workdir"]:
        return {"workdir": os.path.abspath(flags["workdir"])}
    # Files are put into a directory of the job's own, and a container has directories of its own.
    is_settled = "workdir" in spec or spec.get("files") or spec.get("image")
    return {} if is_settled else {"workdir": os.getcwd()}


def files_to_send(texts: Sequence[str]) -> dict[str, bytes]:
    """`FILE`, or `FILE:PATH` for another name there."""
    found = {}
    for text in texts:
        local, sign, path = text.rpartition(":")
        source = Path(local if sign else text)
        try:
            found[path if sign else source.name] = source.read_bytes()
        except OSError as error:
            raise click.BadParameter(f"{source}: {error.strerror}", param_hint="--send") from None
    return found


def _env(texts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """`K=V`, or `K` alone for the value it has here."""
    said = []
    for text in texts:
        if "=" not in text and text not in environ:
            raise click.BadParameter(f"{text!r} is not set here; write {text}=VALUE", param_hint="--env")
        said.append(text if "=" in text else f"{text}={environ[text]}")
    return pairs(said, "--env")


def _number(text: str) -> float | str:
    """Or yes or no."""
    if text in ("true", "false"):
        return text == "true"
    try:
        value = float(text)
    except ValueError:
        return text  # the server says what would be accepted
    return int(value) if value.is_integer() else value
