"""Who may do what: a role says which actions, its namespaces where; what is not granted is denied."""

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
    READ = "look"
    SUBMIT = "submit jobs"
    CANCEL = "cancel jobs"
    DELETE = "delete jobs"
    READ_ENVIRONMENTS = "read the environments of jobs"
    READ_SETTINGS = "read the settings of providers"
    READ_PROVIDERS = "read the words of providers"
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
    Action.READ_ENVIRONMENTS: Role.SUBMITTER,  # keys are often passed that way; a submitter could print them
    Action.READ_SETTINGS: Role.ADMIN,  # command lines of the server, and keys in them
    Action.READ_PROVIDERS: Role.OPERATOR,  # they may quote those command lines
    Action.CHANGE_NODES: Role.OPERATOR,
    Action.CHANGE_NAMESPACES: Role.OPERATOR,
    Action.CHANGE_CLUSTERS: Role.OPERATOR,
    Action.REPORT: Role.OPERATOR,  # in place of a task, or of its node
    Action.ADD_CLUSTERS: Role.ADMIN,  # a provider runs commands where the server does
    Action.ADD_NODES: Role.ADMIN,  # a node sees the work and the environment of every namespace
    Action.CHANGE_TOKENS: Role.ADMIN,  # whoever makes tokens can be anybody
    Action.BACK_UP: Role.ADMIN,  # a backup holds the keys of the cluster
    Action.RESTORE: Role.ADMIN,
    Action.ROTATE_CA: Role.ADMIN,  # it can cut off every node
}


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    role: Role
    namespaces: tuple[str, ...]
    task: TaskName | None = None  # it is a task, which may report its result and nothing else
    node: NodeId | None = None  # it is a node, which may report the results of its attempts and nothing else
    token: str = ""  # id of its API token; empty: it is known by something else
    owner: str = ""  # the same for a token and the ones that replace it

    @property
    def is_cluster_wide(self) -> bool:
        return ALL_NAMESPACES in self.namespaces


def is_cluster_admin(caller: Caller) -> bool:
    return caller.role >= Role.ADMIN and caller.is_cluster_wide


def can_see(caller: Caller, namespace: str) -> bool:
    return caller.is_cluster_wide or namespace in caller.namespaces


def is_allowed(caller: Caller, action: Action, namespace: str) -> bool:
    """Whether the caller may do so in a namespace; EVERYWHERE: on the cluster itself."""
    return caller.role >= MINIMUM_ROLE[action] and can_see(caller, namespace)


def redacted(values: Mapping[str, str]) -> dict[str, str]:
    """The same names without their values."""
    return dict.fromkeys(values, REDACTED)


def require_in_namespace(caller: Caller, action: Action, namespace: str) -> None:
    """In a namespace."""
    require_role(caller, action)
    if not can_see(caller, namespace):
        raise NotAllowed(
            f"{caller.name} may not {action} in namespace {namespace}",
            field="namespace",
            hint=f"this token is for: {', '.join(caller.namespaces) or 'no namespace'}",
        )


def require_cluster_wide(caller: Caller, action: Action) -> None:
    """On the cluster itself, which belongs to no namespace."""
    require_role(caller, action)
    if not caller.is_cluster_wide:
        raise NotAllowed(f"{caller.name} may not {action}: its token is for some namespaces only")


def require_role(caller: Caller, action: Action) -> None:
    """Wherever it may."""
    lowest = MINIMUM_ROLE[action]
    if caller.role < lowest:
        raise NotAllowed(
            f"{caller.name} may not {action}: its role is {caller.role}", hint=f"this needs the role {lowest}"
        )
