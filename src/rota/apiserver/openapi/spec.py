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
    """What a job asks for. Sizes are bytes or `512m`, durations seconds or `90s`."""

    command: Annotated[
        Texts | None, doc("program and arguments; no shell is involved unless it is named")
    ] = None
    steps: Annotated[
        list[Table] | None, doc("instead of a command: several, run in order until one fails")
    ] = None
    files: Annotated[
        Table | None, doc("small inputs by path: a text, or {base64: …}; shown as their sizes")
    ] = None
    name: Annotated[str | None, doc("letters, digits, '.', '_' and '-'; without it that of the program")] = (
        None
    )
    namespace: Annotated[str, doc("whose job it is")] = "default"
    cluster: Annotated[str | None, doc("where it is to run; without it the one that suits it")] = None
    kind: Annotated[str, doc("batch, service or system")] = "batch"
    restart: Annotated[Table | None, doc("of a service: attempts, within, delay, delay_max")] = None
    check: Annotated[Table | None, doc("of a service: command, tcp or http, and how often")] = None
    rollout: Annotated[
        Table | None,
        doc("of a service: how an update is rolled out: max_parallel, healthy, deadline, rollback"),
    ] = None
    count: Annotated[Count, doc("number of tasks; their indices are 0 to count - 1")] = 1
    after: Annotated[
        str | list[Any], doc("jobs that have to end first: `12`, `build:failure`, {job, on}")
    ] = field(default_factory=list)
    parallel: Annotated[Count | None, doc("at most so many tasks under way at once")] = None
    cpu: Annotated[int | float | str, doc("cores of each task: 2, 0.5, `500m`")] = 1
    memory: Annotated[Size, doc("of each task")] = 0
    disk: Annotated[Size, doc("of each task")] = 0
    gpu: Annotated[int | float | str, doc("GPUs of each task: whole ones, or a part of one")] = 0
    resources: Annotated[Table, doc("whole numbers of anything else that nodes declare")] = field(
        default_factory=dict
    )
    limits: Annotated[Table, doc("the most a task gets: memory, cpu, pids")] = field(default_factory=dict)
    where: Annotated[Texts, doc("conditions on labels of the node, all of which must hold")] = field(
        default_factory=list
    )
    region: Annotated[str | None, doc("short for `region == …` in where")] = None
    on: Annotated[str | None, doc("short for `node == …` in where")] = None
    gpu_model: Annotated[str | None, doc("short for `gpu_model == …` in where")] = None
    prefer: Annotated[Texts, doc("conditions that are worth some points: `ssd exists weight 20`")] = field(
        default_factory=list
    )
    near: Annotated[Texts, doc("where other jobs run: `job == db`")] = field(default_factory=list)
    apart: Annotated[Texts, doc("where other jobs do not run: `app == web over rack`")] = field(
        default_factory=list
    )
    spread: Annotated[Texts, doc("evenly over the values of a label: `region`, `rack skew 2`")] = field(
        default_factory=list
    )
    tolerate: Annotated[Texts, doc("taints it may run under: `dedicated`, `dedicated=ci`, `*`")] = field(
        default_factory=list
    )
    policy: Annotated[str, doc("spread: the idlest node; pack: the fullest that fits")] = "spread"
    noise: Annotated[str | None, doc("a word for what it disturbs; it is kept away from its like")] = None
    gang: Annotated[bool, doc("all tasks start together, or none")] = False
    priority: Annotated[Count, doc("0 to 100; higher goes first")] = 50
    move_pending: Annotated[bool, doc("false: it stays in its cluster while it waits")] = True
    preemptible: Annotated[bool, doc("false: never gives way to a higher priority")] = True
    evict_at_most: Annotated[Count | None, doc("how many of its tasks may give way at one time")] = None
    expect: Annotated[Duration | None, doc("how long a task runs, as far as is known")] = None
    deadline: Annotated[Duration | None, doc("by when it has to be over: `2h`, or a time with its zone")] = (
        None
    )
    log_bytes: Annotated[Size | None, doc("output kept of each stream of an attempt")] = None
    results: Annotated[
        bool | Literal["agent"],
        doc("true: its tasks report what came of them, by a token; `agent`: their nodes' agents do"),
    ] = False
    keep: Annotated[Duration | None, doc("how long it is remembered after its end")] = None
    retries: Annotated[Count, doc("how often a failed task is tried again")] = 0
    retry_on: Annotated[Any, doc("only these are tried again: exit codes, `signal`, `oom`, `timeout`")] = (
        field(default_factory=list)
    )
    fail_on: Annotated[Any, doc("exit codes after which the task has failed, whatever retries are left")] = (
        field(default_factory=list)
    )
    retry: Annotated[Table | None, doc("the same as a table, with the pauses")] = None
    timeout: Annotated[Duration | None, doc("time limit of an attempt")] = None
    queue_timeout: Annotated[Duration | None, doc("how long a task may wait to be placed")] = None
    stop_signal: Annotated[str | int | None, doc("by which it is asked to end: TERM, INT, QUIT, HUP, …")] = (
        None
    )
    grace: Annotated[Duration, doc("between that and SIGKILL")] = 10
    env: Annotated[Table, doc("variables of the work")] = field(default_factory=dict)
    workdir: Annotated[str | None, doc("an absolute path on the node")] = None
    image: Annotated[str | None, doc("the container image in which its tasks run")] = None
    container: Annotated[Table | None, doc("with an image: user, network, mounts, workdir, pull")] = None
    sandbox: Annotated[bool | Table | None, doc("true, or a table of network and writable")] = None
    labels: Annotated[Table, doc("to find the job by, and for near and apart of other jobs")] = field(
        default_factory=dict
    )
    run: Annotated[str, doc("at_least_once, one_at_a_time or at_most_once")] = "at_least_once"
    lease: Annotated[Duration | None, doc("of one_at_a_time: how long it runs on without the server")] = None
    lease_margin: Annotated[Duration | None, doc("how much longer nobody takes its place")] = None
    recovery: Annotated[str, doc("who deals with a task whose node is lost")] = "scheduler"
    controller: Annotated[str | None, doc("with recovery = controller: its name")] = None
    when_no_controller: Annotated[str | None, doc("while it is away: wait, or scheduler")] = None
    controller_wait: Annotated[Duration | None, doc("after which time")] = None
    when_unschedulable: Annotated[str, doc("queue, reject, or scale: it waits, and asks for a node")] = (
        "queue"
    )


class SubmittedSpec(JobBody):
    """What a job asks for, as it was understood."""

    rerun_of: Annotated[str | None, doc("the id of the job that it runs once more")] = None


class PlanBody(JobBody):
    """A job, and nodes that are only thought of."""

    add_nodes: Annotated[list[Table], doc("nodes to think of: count, capacity, labels each")] = field(
        default_factory=list
    )
    without: Annotated[list[str], doc("nodes to think away")] = field(default_factory=list)
    scale: Annotated[bool, doc("say also which cluster would grow for it, and by how much")] = False


def _nullable(name: str, hint: Any) -> tuple[str, Any, None]:
    kind, *words = get_args(hint)
    return name, Annotated[kind | None, *words] if kind is not Any else hint, None


UpdateBody = msgspec.defstruct(
    "UpdateBody",
    [_nullable(name, hint) for name, hint in get_type_hints(JobBody, include_extras=True).items()],
    kw_only=True,
    forbid_unknown_fields=True,
)
UpdateBody.__doc__ = "Fields of a job that are to change; null is the default."
