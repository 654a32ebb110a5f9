"""Origin: by whose word a job needs so much of a resource."""

from enum import StrEnum


class NeedOrigin(StrEnum):
    EXPLICIT = "explicit"  # its own
    NAMESPACE = "namespace"
    OBSERVED = "observed"  # nobody's: the last of its name used so much
    DEFAULT = "default"
