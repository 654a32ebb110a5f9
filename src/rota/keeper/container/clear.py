"""python -m rota.keeper.container.clear TASK: clear a container away, then say how it fared. [I/O]

A process of its own, because the keeper buries whatever ends, and asking a runtime takes long.
"""

import contextlib
import glob
import json
import os
import subprocess
import sys
import time
from typing import Any

from rota.keeper.container.argv import LABEL, ContainerState, cgroup_parent

ENGINE_TIMEOUT_SECONDS = 60.0  # a runtime that says nothing for so long is asked again
PAUSE_SECONDS = 0.1
CGROUP_TIMEOUT_SECONDS = 5.0
CGROUP_ROOT = "/sys/fs/cgroup"
LONGEST_PAUSE_SECONDS = 5.0


def main(task: str) -> int:
    """An object of keeper (its pid), program, name, image, code (negative: of a signal), group, was_made."""
    said = json.loads(task)
    program, name, code, group = said["program"], said["name"], said["code"], said["group"]
    state = read_state(program, name) if code else {}  # of one that ended well there is nothing to be asked
    seen = inspect_container(program, said["image"], state) if code else ContainerState()
    has_ended = not state.get("Running")
    pause_seconds = PAUSE_SECONDS
    while not (has_ended and remove(program, name)) and not remove_matching(program, f"name=^{name}$"):
        if not said["was_made"]:  # by its own word, and now it says nothing
            break
        if os.getppid() != said["keeper"]:  # that is gone; the next one goes on
            return 1
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
    peak_bytes = peak_memory(group) if group else 0
    print(json.dumps([seen.ran, seen.out_of_memory, seen.has_image, peak_bytes]), flush=True)
    if group:
        os.close(1)  # whoever waits has all it wants
        remove_cgroups(group)
    return 0


def read_state(program: str, name: str) -> dict[str, Any]:
    said = run_engine(program, "container", "inspect", "--format", "{{json .State}}", name)
    state: dict[str, Any] = json.loads(said) if said else {}
    return state


def inspect_container(program: str, image: str, state: dict[str, Any]) -> ContainerState:
    ran = bool(state) and not str(state.get("StartedAt", "")).startswith("0001-")
    if ran or run_engine(program, "image", "inspect", "--format", "{{.Id}}", image):
        return ContainerState(ran, bool(state.get("OOMKilled")))
    return ContainerState(ran=False, has_image=run_engine(program, "images", "--quiet") is None)


def remove(program: str, *names: str) -> bool:
    """One that runs is given ten seconds by some runtimes: such are to be killed before."""
    return run_engine(program, "rm", "--force", "--volumes", *names) is not None


def remove_matching(program: str, which: str) -> bool:
    """Kill and remove every container of which this holds; False: some may be left."""
    there = run_engine(program, "ps", "--all", "--quiet", "--filter", which)
    if not there:
        return there is not None
    run_engine(program, "kill", *there.split())
    return remove(program, *there.split()) and not run_engine(
        program, "ps", "--all", "--quiet", "--filter", which
    )


def peak_memory(group: str) -> int:
    try:
        with open(f"{CGROUP_ROOT}/memory{group}/memory.max_usage_in_bytes", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def remove_cgroups(groups: str) -> None:
    """What is in them ends by itself, soon; `groups` may be a pattern."""
    give_up_at = time.monotonic() + CGROUP_TIMEOUT_SECONDS
    while (left := glob.glob(f"{CGROUP_ROOT}/*{groups}")) and time.monotonic() < give_up_at:
        for path in [*glob.glob(f"{CGROUP_ROOT}/*{groups}/*/"), *left]:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        time.sleep(PAUSE_SECONDS)
    for path in glob.glob(f"{CGROUP_ROOT}/*{os.path.dirname(groups)}"):
        with contextlib.suppress(OSError):  # others use it
            os.rmdir(path)


def remove_marked(program: str, mark: str) -> bool:
    is_done = remove_matching(program, f"label={LABEL}={mark}")
    remove_cgroups(f"{cgroup_parent(mark)}/*")
    return is_done


def run_engine(*words: str) -> str | None:
    """What it answers; None: it does not, or says no."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ENGINE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
