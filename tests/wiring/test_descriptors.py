"""A server raises its limit of descriptors from the soft to the hard one."""

import subprocess
import sys

SCRIPT = """
import resource
from rota.wiring.process import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
raise_descriptor_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)

    assert result.stdout.split() == ["512", "512"]
