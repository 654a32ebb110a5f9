"""The fewest victims on one node equal the result of trying every subset."""

from collections.abc import Sequence
from itertools import combinations
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from rota.model.ids import JobId
from rota.scheduler.policy.preempt import Victim, _fewest_by_trial, _Shortfall

# Number of evicted tasks, and the amount released here. A gang that is already stopping has none to evict.
victims = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=6)


class Missing:
    def __init__(self, amount: int) -> None:
        self._amount = amount

    def met_by(self, victims: Sequence[Victim]) -> bool:
        return sum(victim.freed["cpu"] for victim in victims) >= self._amount


def made(number: int, tasks: int, amount: int) -> Victim:
    return Victim(0, tuple((JobId(str(number)), index) for index in range(tasks)), {"cpu": amount})


def count_tasks(victims: Sequence[Victim]) -> int:
    return sum(len(victim.tasks) for victim in victims)


@given(victims, st.data())
def test_no_other_sufficient_set_of_victims_has_fewer_tasks(
    given_: list[tuple[int, int]], data: st.DataObject
) -> None:
    candidates = [made(number, *fields) for number, fields in enumerate(given_)]
    need = Missing(data.draw(st.integers(1, sum(amount for _, amount in given_))))
    sets = [chosen for size in range(1, len(candidates) + 1) for chosen in combinations(candidates, size)]

    chosen = _fewest_by_trial(cast(_Shortfall, need), candidates)

    assert need.met_by(chosen)
    assert count_tasks(chosen) == min(count_tasks(other) for other in sets if need.met_by(other))
