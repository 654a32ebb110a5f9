"""Accounts: what each namespace and each user holds of the cluster."""

from collections.abc import Iterable

from rota.model.namespace import TASKS
from rota.model.shape import Owner


class Accounts:
    """Reserved amounts and live tasks, added up. Written only by the mirror."""

    def __init__(self) -> None:
        self.of_namespace: dict[str, dict[str, int]] = {}
        self.of_owner: dict[Owner, dict[str, int]] = {}
        self.released: dict[str, int] = {}  # by namespace: how often it gave something back

    def charge(self, owner: Owner, needs: Iterable[tuple[str, int]], tasks: int) -> None:
        """So many tasks more (a negative number: fewer) hold room."""
        ours = self.of_namespace.setdefault(owner.namespace, {})
        if tasks < 0:
            self.released[owner.namespace] = self.released.get(owner.namespace, 0) + 1
        for held in (ours, self.of_owner.setdefault(owner, {})):
            held[TASKS] = held.get(TASKS, 0) + tasks
            for resource, amount in needs:
                held[resource] = held.get(resource, 0) + amount * tasks
