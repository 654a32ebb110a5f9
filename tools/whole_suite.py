"""Every test, two at a time; the few that fail are run once more, alone, and named.

Most tests start real processes and wait for them on a machine whose speed nobody promises. A failure that
does not come back when the test has the machine for itself does not stop a change; it is still somebody's
mistake, so it is printed as unsteady. More than a few failures are never the machine's: they are final.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

FEW = 10
FAILED = 1  # pytest's word for "some tests failed", and for nothing else
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def pytest(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *words], check=False).returncode


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for pytest, which cleans up
    code = pytest("-n", "2", "--cache-clear", "--session-timeout=4000", "tests")
    if code != FAILED:
        return code
    failed = list(json.loads(LAST_FAILED.read_text()))
    if len(failed) > FEW:
        return code
    print(f"\n{len(failed)} failed; each has the machine for itself now", flush=True)
    code = pytest("--last-failed", "--session-timeout=900", "tests")
    if code == 0:
        print("\nUNSTEADY: these failed beside others and passed alone", *failed, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main())
