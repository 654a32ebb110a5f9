"""The environment in which a child process imports the same Rota and these tests."""

import os
from pathlib import Path

import rota

SOURCE = Path(rota.__file__).parents[1]
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
