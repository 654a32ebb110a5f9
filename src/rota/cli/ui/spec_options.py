"""Build the spec of a job from flags and a job file; flags take precedence. The server validates it."""

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
    click.option("-n", "--name", help="The name of the job. [default: that of the program]"),
    click.option("--namespace", help="The namespace. [default: ROTA_NAMESPACE, or default]"),
    click.option("-c", "--cpu", metavar="CORES", help="Cores per task, as 2 or 0.5. [default: 1]"),
    click.option("-m", "--memory", metavar="SIZE", help="Memory per task, as 512m, 4g or 1.5Gi."),
    click.option("--disk", metavar="SIZE", help="Disk per task."),
    click.option("--gpu", metavar="N", help="GPUs per task: 2, or 0.5 for half a GPU."),
    click.option("--gpu-model", metavar="MODEL", help="Only nodes with this GPU model."),
    click.option("--resource", multiple=True, metavar="NAME=N", help="A custom resource; repeatable."),
    click.option(
        "--limit",
        multiple=True,
        metavar="NAME=N",
        help="Limits of a task: memory=1g, cpu=2, pids=100; repeatable. [default: memory as requested]",
    ),
    click.option(
        "--where",
        multiple=True,
        metavar="RULE",
        help="Only nodes that satisfy this, as 'region == eu'; repeatable.",
    ),
    click.option("--region", help="Only nodes of this region."),
    click.option(
        "--cluster",
        "in_cluster",
        metavar="NAME",
        help="Only this cluster. [default: the best match]",
    ),
    click.option("--on", metavar="NODE", help="Only this node."),
    click.option(
        "--prefer",
        multiple=True,
        metavar="RULE",
        help="Prefer such nodes, as 'ssd exists weight 20'; repeatable.",
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
        help="Spread its tasks evenly over the values of a label, as 'region' or 'rack skew 2'; repeatable.",
    ),
    click.option(
        "--tolerate",
        multiple=True,
        metavar="TAINT",
        help="Tolerate nodes with this taint, or '*'; repeatable.",
    ),
    click.option("--pack", is_flag=True, help="Bin-packing: prefer the most allocated node that fits."),
    click.option(
        "--noise", metavar="KIND", help="Keep apart from jobs with the same kind of noise, as 'disk'."
    ),
    click.option(
        "--kind", metavar="KIND", help="batch, service, or system (one task on every node that fits)."
    ),
    click.option("--every-node", is_flag=True, help="The same as --kind system."),
    click.option("--count", type=int, metavar="N", help="Number of tasks. [default: 1]"),
    click.option("--array", metavar="0-99%8", help="Tasks 0 to 99, at most 8 at once."),
    click.option("--service", is_flag=True, help="Keep it running until it is canceled; do not wait."),
    click.option(
        "--check-http", metavar="PORT/PATH", help="A service is healthy if this answers: 8080/health."
    ),
    click.option(
        "--check-tcp", metavar="PORT", help="A service is healthy if this port accepts connections."
    ),
    click.option("--check-command", metavar="COMMAND", help="A service is healthy if this exits with 0."),
    click.option(
        "--rollout",
        multiple=True,
        metavar="NAME=VALUE",
        help="How a service is updated: max_parallel, healthy, deadline, rollback.",
    ),
    click.option(
        "--stop-signal", metavar="SIGNAL", help="Signal that asks it to end, as INT. [default: TERM]"
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="JOB[:ON]",
        help="Start once this job has ended: on success (the default), failure or any; repeatable.",
    ),
    click.option("--gang", is_flag=True, help="All tasks start together, or none."),
    click.option("--retry", type=int, metavar="N", help="How often a failed task is retried. [default: 0]"),
    click.option(
        "--retry-on",
        metavar="WHAT",
        help="Retry only after these: exit codes, signal, oom, timeout, as 75,oom. [default: any failure]",
    ),
    click.option("--fail-on", metavar="CODES", help="Never retry after these exit codes, as 2,64-78."),
    click.option(
        "--retry-delay", metavar="DURATION", help="Delay before the first retry; then doubled. [default: 1s]"
    ),
    click.option("--timeout", metavar="DURATION", help="Time limit per attempt, as 90s or 2h30m."),
    click.option("--queue-timeout", metavar="DURATION", help="How long a task may wait for its start."),
    click.option("--grace", metavar="DURATION", help="Time between SIGTERM and SIGKILL. [default: 10s]"),
    click.option(
        "--priority", type=int, metavar="0-100", help="Higher priorities start first. [default: 50]"
    ),
    click.option("--expect", metavar="DURATION", help="Expected run time of a task."),
    click.option(
        "--deadline",
        metavar="WHEN",
        help="The job must end by then: 2h from now, or 2026-12-01T08:00:00+01:00.",
    ),
    click.option("--stay", is_flag=True, help="Do not move to another cluster while it waits."),
    click.option("--not-preemptible", is_flag=True, help="Never preempt its tasks for higher priorities."),
    click.option(
        "--evict-at-most", type=int, metavar="N", help="At most this many of its tasks are evicted at a time."
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="K=V",
        help="An environment variable, or K for its current value; repeatable.",
    ),
    click.option(
        "--send",
        multiple=True,
        metavar="FILE[:PATH]",
        help="Send this file to the directory of the job, 256 KiB in all; repeatable.",
    ),
    click.option("--label", multiple=True, metavar="K=V", help="A label of the job; repeatable."),
    click.option("--image", metavar="IMAGE", help="Run in a container of this image."),
    click.option(
        "--mount",
        multiple=True,
        metavar="SRC:DST[:ro]",
        help="Mount this path of the node in the container; repeatable.",
    ),
    click.option(
        "--sandbox", is_flag=True, help="Run with the node read-only, without network and other processes."
    ),
    click.option("--workdir", metavar="DIR", help="Directory to run in. [default: the current one]"),
    click.option("--no-workdir", is_flag=True, help="Run in a fresh directory on the node."),
    click.option(
        "--log-bytes", metavar="SIZE", help="Output kept of each stream. [default: set by the node]"
    ),
    click.option("--results", is_flag=True, help="Give its tasks a token to report results with."),
    click.option("--results-by-agent", is_flag=True, help="Let the agents report the results of its tasks."),
    click.option("--keep", metavar="DURATION", help="How long the job is kept after its end."),
    click.option("--run-mode", metavar="MODE", help="at_least_once, one_at_a_time or at_most_once."),
    click.option(
        "--lease",
        metavar="DURATION",
        help="one_at_a_time: how long a task keeps running without the server. [default: 20s]",
    ),
    click.option("--when-unschedulable", metavar="WHAT", help="queue, reject or scale, if no node fits now."),
    click.option(
        "--recovery",
        metavar="OWNER",
        help="What decides on lost tasks: scheduler, controller, cancel or none. [default: scheduler]",
    ),
    click.option(
        "--controller", metavar="NAME", help="The name of the controller, with --recovery controller."
    ),
    click.option(
        "--when-no-controller",
        metavar="WHAT",
        help="wait or scheduler, while the controller is disconnected.",
    ),
    click.option(
        "--controller-wait",
        metavar="TIME",
        help="How long the controller may be disconnected. [default: 60s]",
    ),
)
# Flags whose value goes into the spec unchanged, with the name of the spec field.
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
# Repeatable flags: together they replace the value of the file.
_LISTS = ("where", "prefer", "near", "apart", "spread", "tolerate", "after")
_CODES = ("retry_on", "fail_on")
# Flags without a value, and the fields they set.
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
    """The complete spec of a job; `before` are fields that were already read, as from the file of a cron."""
    spec = given_fields(flags, command, environ, before)
    if not spec.get("command") and not spec.get("steps"):
        raise click.UsageError("no command to run; write rota run -- PROGRAM ARGUMENTS")
    return {**spec, **_array(flags), **_workdir(flags, spec)}


def given_fields(
    flags: Mapping[str, Any],
    command: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields given by a file or flags; commands may have only some of the flags."""
    spec = read_job_file(flags["file"]) if flags["file"] else dict(before or {})
    spec |= {field: flags[flag] for flag, field in _PLAIN.items() if flags.get(flag) is not None}
    spec |= {field: _number(flags[field]) for field in ("cpu", "gpu") if flags.get(field) is not None}
    spec |= {field: list(flags[field]) for field in _LISTS if flags.get(field)}
    for flag, values in _SWITCHES.items():
        spec |= values if flags.get(flag) else {}
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
    text: str = flags[given[0]]
    match given[0]:
        case "check_http":
            port, sign, path = text.partition("/")
            return {"http": f"/{path}", "port": _number(port)} if sign else {"http": text}
        case "check_tcp":
            return {"tcp": _number(text)}
        case _:
            return {"command": shlex.split(text)}


def _retry(flags: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The retry fields; flags take precedence over the file, also over entries of its table `retry`."""
    plain = {name: codes(flags[name], f"--{name.replace('_', '-')}") for name in _CODES if flags.get(name)}
    table = spec.get("retry") or {}
    if not isinstance(table, dict):
        return plain  # the server rejects it and says what would be accepted
    given = {"on": flags.get("retry_on"), "fail_on": flags.get("fail_on"), "attempts": flags.get("retry")}
    kept = {name: value for name, value in table.items() if given.get(name) is None}
    kept |= {"delay": flags["retry_delay"]} if flags.get("retry_delay") else {}
    return {**plain, "retry": kept} if kept or table else dict(plain)


def _amounts(texts: Sequence[str], flag: str) -> dict[str, Any]:
    return {name: _number(amount) for name, amount in pairs(texts, flag).items()}


def _array(flags: Mapping[str, Any]) -> dict[str, Any]:
    if not flags["array"]:
        return {}
    if flags["count"] is not None:
        raise click.UsageError("--array and --count exclude each other")
    count, parallel = array(flags["array"])
    return {"count": count} | ({"parallel": parallel} if parallel else {})


def _workdir(flags: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    if flags["no_workdir"]:
        if flags["workdir"]:
            raise click.UsageError("--workdir and --no-workdir exclude each other")
        return {"workdir": None}
    if flags["workdir"]:
        return {"workdir": os.path.abspath(flags["workdir"])}
    # Files are sent to a directory of the job, and a container has its own directories.
    is_settled = "workdir" in spec or spec.get("files") or spec.get("image")
    return {} if is_settled else {"workdir": os.getcwd()}


def files_to_send(texts: Sequence[str]) -> dict[str, bytes]:
    """The files to send: `FILE`, or `FILE:PATH` for another name on the node."""
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
    """Environment variables: `K=V`, or `K` for its value in this process."""
    complete = []
    for text in texts:
        if "=" not in text and text not in environ:
            raise click.BadParameter(f"{text!r} is not set here; write {text}=VALUE", param_hint="--env")
        complete.append(text if "=" in text else f"{text}={environ[text]}")
    return pairs(complete, "--env")


def _number(text: str) -> float | str:
    """A number, a boolean, or the text itself."""
    if text in ("true", "false"):
        return text == "true"
    try:
        value = float(text)
    except ValueError:
        return text  # the server rejects it and says what would be accepted
    return int(value) if value.is_integer() else value
