"""`import rota` is cheap, whatever the rest of Rota needs."""

import subprocess
import sys

from tests.architecture.table import SOURCE, THIRD_PARTY

SCRIPT = "import sys; import rota; print(*sys.modules)"


def test_importing_rota_loads_no_other_module_of_ours_and_no_third_party() -> None:
    command = [sys.executable, "-S", "-c", SCRIPT]
    listed = subprocess.run(
        command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    loaded = listed.stdout.split()

    assert [name for name in loaded if name.startswith("rota")] == ["rota"]
    assert not {name.partition(".")[0] for name in loaded} & THIRD_PARTY.keys()
