"""A job -> the keys of all its records."""

from rota.model.ids import Key
from rota.model.view import JobView


def keys_of(job: JobView) -> tuple[Key, ...]:
    """All but its submit key, so that a late repeat makes no second one."""
    parts = ("spec", "wish", "cluster", "status", "verdict")
    blocks = {"task": job.tasks, "attempt": job.attempts, "status": job.statuses}
    keys = [f"job/{job.spec.id}/{part}" for part in parts]
    keys += [f"{kind}/{job.spec.id}/{block}" for kind, known in blocks.items() for block in known]
    return tuple(Key(key) for key in keys)
