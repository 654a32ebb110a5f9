"""Authorization: a caller's role says which actions it may do, its namespaces where. Default: denied."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rota.identity.task_tokens import TaskName
from rota.identity.tokens import Role
from rota.model.errors import NotAllowed
from rota.model.ids import NodeId

ALL_NAMESPACES = "*"  # as a namespace of a token: all of them, and the cluster itself
REDACTED = "***"  # shown in place of a value that the caller may not read


class Action(StrEnum):
    """What a caller may do; the value completes the sentence "NAME may not ..." of a refusal."""

    READ = "read"
    SUBMIT = "submit jobs"
    CANCEL = "cancel jobs"
    DELETE = "delete jobs"
    READ_ENVIRONMENTS = "read the environments of jobs"
    READ_SETTINGS = "read the settings of providers"
    READ_PROVIDERS = "read the output of providers"
    SUBSCRIBE = "keep a subscriber's position"
    CHANGE_NODES = "change nodes"
    CHANGE_NAMESPACES = "change namespaces"
    ADD_NODES = "add nodes"
    CHANGE_CLUSTERS = "change clusters"
    ADD_CLUSTERS = "add clusters"
    CHANGE_TOKENS = "change tokens"
    BACK_UP = "back up the store"
    RESTORE = "let nodes follow a restored server"
    REPORT = "report the results of tasks"
    ROTATE_CA = "rotate the cluster's CA"


MINIMUM_ROLE: dict[Action, Role] = {
    Action.READ: Role.VIEWER,
    Action.SUBMIT: Role.SUBMITTER,
    Action.CANCEL: Role.SUBMITTER,
    Action.DELETE: Role.SUBMITTER,
    Action.SUBSCRIBE: Role.SUBMITTER,
    Action.READ_ENVIRONMENTS: Role.SUBMITTER,  # often hold keys; a submitter could print them anyway
    Action.READ_SETTINGS: Role.ADMIN,  # command lines of the server, and keys in them
    Action.READ_PROVIDERS: Role.OPERATOR,  # their output may quote those command lines
    Action.CHANGE_NODES: Role.OPERATOR,
    Action.CHANGE_NAMESPACES: Role.OPERATOR,
    Action.CHANGE_CLUSTERS: Role.OPERATOR,
    Action.REPORT: Role.OPERATOR,  # in place of a task, or of its node
    Action.ADD_CLUSTERS: Role.ADMIN,  # a provider runs commands where the server does
    Action.ADD_NODES: Role.ADMIN,  # a node sees the work and the environment of every namespace
    Action.CHANGE_TOKENS: Role.ADMIN,  # a token that makes tokens can get any role
    Action.BACK_UP: Role.ADMIN,  # a backup holds the keys of the cluster
    Action.RESTORE: Role.ADMIN,
    Action.ROTATE_CA: Role.ADMIN,  # it can cut off every node
}


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request."""

    name: str
    role: Role
    namespaces: tuple[str, ...]
    task: TaskName | None = None  # set for a task, which may report its result and nothing else
    node: NodeId | None = None  # set for a node, which may report results of its attempts and nothing else
    token: str = ""  # id of its API token; empty if it authenticated otherwise
    owner: str = ""  # the same for a token and its successors

    @property
    def is_cluster_wide(self) -> bool:
        return ALL_NAMESPACES in self.namespaces


def is_cluster_admin(caller: Caller) -> bool:
    return caller.role >= Role.ADMIN and caller.is_cluster_wide


def can_see(caller: Caller, namespace: str) -> bool:
    return caller.is_cluster_wide or namespace in caller.namespaces


def is_allowed(caller: Caller, action: Action, namespace: str) -> bool:
    """Whether the caller may do the action in a namespace; ALL_NAMESPACES: on the cluster itself."""
    return caller.role >= MINIMUM_ROLE[action] and can_see(caller, namespace)


def redacted(values: Mapping[str, str]) -> dict[str, str]:
    """The same names, each with REDACTED as its value."""
    return dict.fromkeys(values, REDACTED)


def require_in_namespace(caller: Caller, action: Action, namespace: str) -> None:
    """Require the role for the action, and access to the namespace."""
    require_role(caller, action)
    if not can_see(caller, namespace):
        raise NotAllowed(
            f"{caller.name} may not {action} in namespace {namespace}",
            field="namespace",
            hint=f"this token is for: {', '.join(caller.namespaces) or 'no namespace'}",
        )


def require_cluster_wide(caller: Caller, action: Action) -> None:
    """Require the role for the action, and access to all namespaces: the cluster itself belongs to none."""
    require_role(caller, action)
    if not caller.is_cluster_wide:
        raise NotAllowed(f"{caller.name} may not {action}: its token is for some namespaces only")


def require_role(caller: Caller, action: Action) -> None:
    """Require the role for the action, ignoring namespaces."""
    lowest = MINIMUM_ROLE[action]
    if caller.role < lowest:
        raise NotAllowed(
            f"{caller.name} may not {action}: its role is {caller.role}", hint=f"this needs the role {lowest}"
        )
