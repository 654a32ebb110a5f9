"""Shape: what a task requires of a node. AffinityRules: what it requires of other tasks. QueueKey: both."""

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

_WHOLE = re.compile(r"-?[0-9]{1,18}")


class Op(StrEnum):
    EQUAL = "=="
    UNEQUAL = "!="
    IN = "in"
    NOT_IN = "not in"
    EXISTS = "exists"
    LESS = "<"
    MORE = ">"


class RunMode(StrEnum):
    AT_LEAST_ONCE = "at_least_once"
    ONE_AT_A_TIME = "one_at_a_time"
    AT_MOST_ONCE = "at_most_once"


class Policy(StrEnum):
    """Which of the fitting nodes is preferred."""

    SPREAD = "spread"  # the least allocated
    PACK = "pack"  # the most allocated: bin-packing


class Constraint(msgspec.Struct, frozen=True):
    """One condition on labels: a node's, or a job's."""

    label: str
    op: Op
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(filter(None, (self.label, self.op.value, ",".join(self.values))))

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.label)
        match self.op:
            case Op.EXISTS:
                return value is not None
            case Op.EQUAL | Op.IN:
                return value in self.values
            case Op.UNEQUAL | Op.NOT_IN:
                return value not in self.values
            case Op.LESS:
                return value is not None and _parts(value) < _parts(self.values[0])
            case Op.MORE:
                return value is not None and _parts(value) > _parts(self.values[0])


LEASES = Constraint("leases", Op.EXISTS)  # the label of nodes that hold run leases says how


def _parts(text: str) -> list[tuple[int, int, str]]:
    """A sort key as for versions: 1.10 is more than 1.9; parts that are no numbers compare as text."""
    return [(0, int(part), "") if _WHOLE.fullmatch(part) else (1, 0, part) for part in text.split(".")]


class Preference(msgspec.Struct, frozen=True):
    """A condition on a node, with a weight in per cent of the score of an idle node."""

    condition: Constraint
    weight: int

    def __str__(self) -> str:
        return f"{self.condition} weight {self.weight}"


class AffinityTerm(msgspec.Struct, frozen=True):
    """Affinity or anti-affinity to other jobs of the namespace, selected by their labels."""

    jobs: Constraint  # over a job's labels; `job` is its name
    over: str = "node"  # the label whose values are the domains: node, rack, region, ...
    weight: int | None = None  # None: it must hold

    def __str__(self) -> str:
        return f"{self.jobs} over {self.over}" + ("" if self.weight is None else f" weight {self.weight}")


class SpreadTerm(msgspec.Struct, frozen=True):
    """A rule to spread a job's tasks evenly over the values of a label."""

    over: str
    skew: int = 1  # by how many tasks the fullest domain may exceed the emptiest
    weight: int | None = None  # None: it must hold

    def __str__(self) -> str:
        return f"{self.over} skew {self.skew}" + ("" if self.weight is None else f" weight {self.weight}")


class Shape(msgspec.Struct, frozen=True, cache_hash=True):
    """What a task requires of a node by itself. Tasks of one shape share one row of scores."""

    needs: tuple[tuple[str, int], ...]
    where: tuple[Constraint, ...] = ()
    run: RunMode = RunMode.AT_LEAST_ONCE
    tolerate: tuple[str, ...] = ()
    prefer: tuple[Preference, ...] = ()
    noise: str | None = None
    policy: Policy = Policy.SPREAD
    inside: tuple[str, ...] = ()  # what its container requires and a node may refuse: mounts, user
    cluster: str = "default"  # whose nodes it may use


class AffinityRules(msgspec.Struct, frozen=True, cache_hash=True):
    """What a task requires of other tasks, so that no node can be judged by itself."""

    near: tuple[AffinityTerm, ...] = ()
    apart: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()
    gang: bool = False


class Owner(msgspec.Struct, frozen=True, cache_hash=True):
    """The account that is charged for a job's usage."""

    namespace: str
    user: str


class QueueKey(msgspec.Struct, frozen=True, cache_hash=True):
    """Jobs that wait for the same thing: while the first of them fits nowhere, none of them does.

    Invariant: everything that decides whether a job can start is a field, so that one failed trial of the
    first job of a queue holds for all jobs behind it.
    """

    shape: Shape
    rules: AffinityRules
    owner: Owner
    expect_ms: int | None = None  # expected run time, by which a job may be backfilled
    own_near: tuple[bool, ...] = ()  # for each `near` term, whether the job's own labels satisfy it
    alone: str = ""  # the job, if the placement of its own tasks decides: system jobs, hard spread
    rejects: bool = False  # such a job ends after a failed trial, and does not wait
    gang: int = 0  # tasks that have to start together
    workdir: str | None = None  # only while nodes refuse it: other directories are not affected

    @property
    def without_workdir(self) -> "QueueKey":
        return self if self.workdir is None else msgspec.structs.replace(self, workdir=None)


NO_AFFINITY_RULES = AffinityRules()


def tolerates(tolerate: tuple[str, ...], taints: tuple[str, ...]) -> bool:
    return not any(is_repelled(tolerate, taint) for taint in taints)


def is_repelled(tolerate: tuple[str, ...], taint: str) -> bool:
    """Whether no toleration matches a taint: by the whole taint, by its key alone, or by `*`."""
    # By the whole taint or its key: tolerating one value must not tolerate the others of that key.
    return not {"*", taint, taint.partition("=")[0]} & set(tolerate)
