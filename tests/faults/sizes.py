"""How much harm the fault tests do: a little each time, much with ROTA_FAULTS=many."""

import os
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    faults: int
    tasks: int


MANY = os.environ.get("ROTA_FAULTS") == "many"
SEED = int(os.environ.get("ROTA_FAULTS_SEED", "1"))  # another one gives another order of faults


def size(few: Size, many: Size) -> Size:
    return many if MANY else few


def chance() -> random.Random:
    return random.Random(SEED)
