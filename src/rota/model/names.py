"""Names and addresses that come from outside: which are accepted, and which have a meaning in Rota itself."""

import re

from rota.model.amounts import TASKS
from rota.model.limits import NAME_LENGTH_MAX

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")
RESERVED_RESOURCES = frozenset({TASKS})  # quotas count live tasks under this name
OWN_LABELS = frozenset({"node", "cluster"})  # set by the server on every node, whatever the node declares
NAME_HINT = "use letters, digits, '.', '_' and '-', the first a letter or digit"


def is_name(text: str) -> bool:
    return len(text) <= NAME_LENGTH_MAX and NAME.fullmatch(text) is not None


def is_label(text: str) -> bool:
    return len(text) <= NAME_LENGTH_MAX and LABEL.fullmatch(text) is not None


def is_resource(text: str) -> bool:
    """Whether a node may offer, and a job may request, a resource of this name."""
    return is_name(text) and text not in RESERVED_RESOURCES


def is_loopback(host: str) -> bool:
    """Whether an address never leaves this machine: only there plain text is allowed.

    It must match exactly: a name that merely starts like a loopback address may be any host.
    """
    numbers = host.split(".")
    return host in ("localhost", "::1") or (
        len(numbers) == 4 and numbers[0] == "127" and all(number.isdecimal() for number in numbers)
    )


def is_port(text: str) -> bool:
    """Whether a text is a port in decimal; 0 stands for any free port."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535


def host_and_port(address: str) -> tuple[str, int]:
    """`host:port` -> both, as sockets expect them: an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
