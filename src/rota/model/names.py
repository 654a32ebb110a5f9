"""Names that come from outside: which are accepted, and which mean something of Rota's own."""

import re

from rota.model.limits import NAME_LENGTH_MAX
from rota.model.namespace import TASKS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")
RESERVED_RESOURCES = frozenset({TASKS})  # quotas count live tasks under this name
OWN_LABELS = frozenset({"node", "cluster"})  # the server sets them on every node, whatever the node says
NAME_HINT = "use letters, digits, '.', '_' and '-', the first a letter or digit"


def is_name(text: str) -> bool:
    return len(text) <= NAME_LENGTH_MAX and NAME.fullmatch(text) is not None


def is_label(text: str) -> bool:
    return len(text) <= NAME_LENGTH_MAX and LABEL.fullmatch(text) is not None


def is_resource(text: str) -> bool:
    """Whether a node may offer, and a job may ask for, a resource of this name."""
    return is_name(text) and text not in RESERVED_RESOURCES
