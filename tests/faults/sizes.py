"""Sizes of the fault tests: few faults by default, many with ROTA_FAULTS=many."""

import os
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class FaultSize:
    """Number of faults and of tasks of a test."""

    faults: int
    tasks: int


MANY = os.environ.get("ROTA_FAULTS") == "many"
SEED = int(os.environ.get("ROTA_FAULTS_SEED", "1"))  # determines the order of faults


def size(few: FaultSize, many: FaultSize) -> FaultSize:
    return many if MANY else few


def rng() -> random.Random:
    return random.Random(SEED)
