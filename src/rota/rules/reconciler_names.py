"""The names of all reconcilers, in the order in which the control plane registers them.

Components never import each other. One that has to wake another, as the watcher wakes the scheduler when a
node connects, names it by a member of this enum. The values are public: events and metrics carry them.
`rota.reconcilers` builds the components themselves; a test compares its list with this one.
"""

from enum import StrEnum


class ReconcilerName(StrEnum):
    ASSIGN = "assign"
    CLUSTER_LIFECYCLE = "cluster"
    CLUSTER_GROUPS = "family"
    SCALE = "scale"
    BATCH = "batch"
    ROLLOUT = "rollout"
    ROLLBACK = "rollback"
    EXPIRE = "expire"
    DEPENDENCIES = "after"
    SYSTEM_JOBS = "system"
    CRON = "cron"
    PLACE = "place"
    QUEUE_LENGTH = "queue"
    UNPLACEABLE = "unplaceable"
    DEADLINE = "deadline"
    DRAIN = "drain"
    LIVENESS = "liveness"
    BRAKE = "brake"
    STUCK_ATTEMPTS = "ages"
    LEAVE_NOTICES = "departures"
    REVOCATIONS = "revocations"


ROUND_KEY = "round"  # the only key of PLACE: one round over all pending tasks
