"""Labels that a node declares + labels it was granted -> the labels that placement conditions see.

A node declares any labels it likes. Labels that it was granted, by the token with which it joined or by an
operator, replace declared ones of the same key, and appear a second time under a name that no node can
declare: `granted.KEY`. So a condition on `granted.pool` depends on the operator alone, and costs the
scheduler no more than any other condition.
"""

from collections.abc import Mapping, Set

PREFIX = "granted."


def matched_labels(
    declared: Mapping[str, str], granted: Mapping[str, str], only_granted: Set[str]
) -> dict[str, str]:
    """Labels for conditions; a declared label whose key is in `only_granted` is left out."""
    marked = {f"{PREFIX}{key}": value for key, value in granted.items()}
    return {**_trusted(declared, only_granted), **granted, **marked}


def shown_labels(
    declared: Mapping[str, str], granted: Mapping[str, str], only_granted: Set[str]
) -> dict[str, str]:
    """The labels in effect, without their duplicates under `granted.`."""
    return {**_trusted(declared, only_granted), **granted}


def ignored_labels(
    declared: Mapping[str, str], granted: Mapping[str, str], only_granted: Set[str]
) -> dict[str, str]:
    """Declared labels without effect, because another value or none was granted."""
    in_effect = shown_labels(declared, granted, only_granted)
    return {key: value for key, value in declared.items() if in_effect.get(key) != value}


def _trusted(declared: Mapping[str, str], only_granted: Set[str]) -> Mapping[str, str]:
    # Nearly all nodes declare nothing that needs filtering: those share the mapping instead of copying it.
    if not any(key in only_granted or key.startswith(PREFIX) for key in declared):
        return declared
    return {
        key: value
        for key, value in declared.items()
        if key not in only_granted and not key.startswith(PREFIX)
    }
