"""Labels that a node declares + labels it was granted -> labels by which work chooses it.

A node declares what it likes. Labels that it was granted, by the token with which it joined or by an
operator, replace declared ones, and stand a second time under a name that no node can declare: `granted.KEY`.
So a condition on `granted.pool` trusts the operator alone, and costs the scheduler no more than another one.
"""

from collections.abc import Mapping, Set

PREFIX = "granted."


def counted(
    declared: Mapping[str, str], granted: Mapping[str, str], only_granted: Set[str]
) -> dict[str, str]:
    """Labels for conditions; a declared label whose key is in `granted_only_labels` does not count."""
    marked = {f"{PREFIX}{key}": value for key, value in granted.items()}
    return {**_kept(declared, only_granted), **granted, **marked}


def shown(declared: Mapping[str, str], granted: Mapping[str, str], only_granted: Set[str]) -> dict[str, str]:
    """The labels that count, each once."""
    return {**_kept(declared, only_granted), **granted}


def ignored(
    declared: Mapping[str, str], granted: Mapping[str, str], only_granted: Set[str]
) -> dict[str, str]:
    """What the node declares and does not count, because another value or nothing was granted."""
    counts = shown(declared, granted, only_granted)
    return {key: value for key, value in declared.items() if counts.get(key) != value}


def _kept(declared: Mapping[str, str], only_granted: Set[str]) -> Mapping[str, str]:
    if not any(key in only_granted or key.startswith(PREFIX) for key in declared):
        return declared
    return {
        key: value
        for key, value in declared.items()
        if key not in only_granted and not key.startswith(PREFIX)
    }
