"""The body of a submit, field by field."""

from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import field

from rota.apiserver.openapi.fields import RequestModel, doc

Count = int | str
Size = int | float | str
Duration = int | float | str
Texts = str | list[str]
Table = dict[str, Any]


class JobBody(RequestModel):
    """The spec of a job. Sizes are bytes or `512m`, durations are seconds or `90s`."""

    command: Annotated[Texts | None, doc("program and arguments; run without a shell")] = None
    steps: Annotated[
        list[Table] | None, doc("several commands instead of one, run in order until one fails")
    ] = None
    files: Annotated[
        Table | None, doc("small input files by path: a text, or {base64: …}; shown as their sizes")
    ] = None
    name: Annotated[
        str | None, doc("letters, digits, '.', '_' and '-'; default: the name of the program")
    ] = None
    namespace: Annotated[str, doc("the namespace of the job")] = "default"
    cluster: Annotated[str | None, doc("the cluster to run in; default: the one that suits it best")] = None
    kind: Annotated[str, doc("batch, service or system")] = "batch"
    restart: Annotated[Table | None, doc("of a service: attempts, within, delay, delay_max")] = None
    check: Annotated[Table | None, doc("of a service: command, tcp or http, and how often")] = None
    rollout: Annotated[
        Table | None,
        doc("of a service, for updates: max_parallel, healthy, deadline, rollback"),
    ] = None
    count: Annotated[Count, doc("number of tasks; their indices are 0 to count - 1")] = 1
    after: Annotated[
        str | list[Any], doc("jobs that have to end first: `12`, `build:failure`, {job, on}")
    ] = field(default_factory=list)
    parallel: Annotated[Count | None, doc("most tasks that run at one time")] = None
    cpu: Annotated[int | float | str, doc("cores of each task: 2, 0.5, `500m`")] = 1
    memory: Annotated[Size, doc("of each task")] = 0
    disk: Annotated[Size, doc("of each task")] = 0
    gpu: Annotated[int | float | str, doc("GPUs of each task: whole ones, or a part of one")] = 0
    resources: Annotated[Table, doc("whole numbers of other resources that nodes declare")] = field(
        default_factory=dict
    )
    limits: Annotated[Table, doc("limits of a task: memory, cpu, pids")] = field(default_factory=dict)
    where: Annotated[Texts, doc("constraints on labels of the node, all of which must hold")] = field(
        default_factory=list
    )
    region: Annotated[str | None, doc("short for `region == …` in where")] = None
    on: Annotated[str | None, doc("short for `node == …` in where")] = None
    gpu_model: Annotated[str | None, doc("short for `gpu_model == …` in where")] = None
    prefer: Annotated[Texts, doc("preferences with a weight: `ssd exists weight 20`")] = field(
        default_factory=list
    )
    near: Annotated[Texts, doc("only where these jobs run: `job == db`")] = field(default_factory=list)
    apart: Annotated[Texts, doc("only where these jobs do not run: `app == web over rack`")] = field(
        default_factory=list
    )
    spread: Annotated[Texts, doc("evenly over the values of a label: `region`, `rack skew 2`")] = field(
        default_factory=list
    )
    tolerate: Annotated[Texts, doc("taints that it tolerates: `dedicated`, `dedicated=ci`, `*`")] = field(
        default_factory=list
    )
    policy: Annotated[
        str, doc("spread: the least allocated node; pack: the most allocated one that fits")
    ] = "spread"
    noise: Annotated[
        str | None, doc("what its tasks disturb, such as `disk`: tasks of the same noise avoid each other")
    ] = None
    gang: Annotated[bool, doc("all tasks start together, or none")] = False
    priority: Annotated[Count, doc("0 to 100; higher is placed first")] = 50
    move_pending: Annotated[bool, doc("false: it stays in its cluster while it waits")] = True
    preemptible: Annotated[bool, doc("false: it is never evicted for a higher priority")] = True
    evict_at_most: Annotated[Count | None, doc("most of its tasks that may be evicted at one time")] = None
    expect: Annotated[Duration | None, doc("expected run time of a task")] = None
    deadline: Annotated[Duration | None, doc("when it has to have ended: `2h`, or a time with its zone")] = (
        None
    )
    log_bytes: Annotated[Size | None, doc("bytes of output kept per stream of an attempt")] = None
    results: Annotated[
        bool | Literal["agent"],
        doc("true: its tasks report results with a token; `agent`: the agents of their nodes do"),
    ] = False
    keep: Annotated[Duration | None, doc("how long its records are kept after its end")] = None
    retries: Annotated[Count, doc("number of retries of a failed task")] = 0
    retry_on: Annotated[
        Any, doc("failures that are retried: exit codes, `signal`, `oom`, `timeout`; default: all")
    ] = field(default_factory=list)
    fail_on: Annotated[Any, doc("exit codes that are never retried")] = field(default_factory=list)
    retry: Annotated[Table | None, doc("the same as a table, with delays")] = None
    timeout: Annotated[Duration | None, doc("time limit of an attempt")] = None
    queue_timeout: Annotated[Duration | None, doc("how long a task may wait to be placed")] = None
    stop_signal: Annotated[str | int | None, doc("the signal that stops it: TERM, INT, QUIT, HUP, …")] = None
    grace: Annotated[Duration, doc("time between the stop signal and SIGKILL")] = 10
    env: Annotated[Table, doc("environment variables")] = field(default_factory=dict)
    workdir: Annotated[str | None, doc("an absolute path on the node")] = None
    image: Annotated[str | None, doc("the container image that its tasks run in")] = None
    container: Annotated[Table | None, doc("with an image: user, network, mounts, workdir, pull")] = None
    sandbox: Annotated[bool | Table | None, doc("true, or a table of network and writable")] = None
    labels: Annotated[Table, doc("labels to find the job by, and for `near` and `apart` of other jobs")] = (
        field(default_factory=dict)
    )
    run: Annotated[str, doc("at_least_once, one_at_a_time or at_most_once")] = "at_least_once"
    lease: Annotated[
        Duration | None, doc("for one_at_a_time: how long a task continues without contact to the server")
    ] = None
    lease_margin: Annotated[
        Duration | None, doc("how much longer the server waits before it is replaced")
    ] = None
    recovery: Annotated[str, doc("which component decides on a task whose node is lost")] = "scheduler"
    controller: Annotated[str | None, doc("with recovery = controller: the name of the controller")] = None
    when_no_controller: Annotated[
        str | None, doc("while the controller is not connected: wait, or scheduler")
    ] = None
    controller_wait: Annotated[Duration | None, doc("for how long it waits for the controller")] = None
    when_unschedulable: Annotated[
        str, doc("queue, reject, or scale: it waits, and its cluster may grow for it")
    ] = "queue"


class SubmittedSpec(JobBody):
    """The spec of a job as it was parsed."""

    rerun_of: Annotated[str | None, doc("the id of the job that it is a rerun of")] = None


class PlanBody(JobBody):
    """A job, and hypothetical changes to the cluster."""

    add_nodes: Annotated[list[Table], doc("hypothetical nodes: count, capacity and labels of each")] = field(
        default_factory=list
    )
    without: Annotated[list[str], doc("nodes to leave out")] = field(default_factory=list)
    scale: Annotated[bool, doc("also tell which cluster would grow for it, and by how much")] = False


def _nullable(name: str, hint: Any) -> tuple[str, Any, None]:
    kind, *metadata = get_args(hint)
    return name, Annotated[kind | None, *metadata] if kind is not Any else hint, None


UpdateBody = msgspec.defstruct(
    "UpdateBody",
    [_nullable(name, hint) for name, hint in get_type_hints(JobBody, include_extras=True).items()],
    kw_only=True,
    forbid_unknown_fields=True,
)
UpdateBody.__doc__ = "Fields of a job to change; null resets a field to its default."
