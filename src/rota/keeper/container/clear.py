"""python -m rota.keeper.container.clear TASK: remove a container, then print how it ended. [I/O]

A process of its own, because the keeper reaps all its children, and calls of a runtime take long.
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

ENGINE_TIMEOUT_SECONDS = 60.0  # a call of the runtime that takes longer is repeated
PAUSE_SECONDS = 0.1
CGROUP_TIMEOUT_SECONDS = 5.0
CGROUP_ROOT = "/sys/fs/cgroup"
LONGEST_PAUSE_SECONDS = 5.0


def main(task: str) -> int:
    """Remove the container of a JSON task: keeper (pid), program, name, image, code, group, was_made."""
    fields = json.loads(task)
    program, name, code, group = fields["program"], fields["name"], fields["code"], fields["group"]
    state = read_state(program, name) if code else {}  # a successful one need not be inspected
    seen = inspect_container(program, fields["image"], state) if code else ContainerState()
    has_ended = not state.get("Running")
    retry_seconds = PAUSE_SECONDS
    while not (has_ended and remove(program, name)) and not remove_matching(program, f"name=^{name}$"):
        if not fields["was_made"]:  # the runtime said so, and does not answer now
            break
        if os.getppid() != fields["keeper"]:  # the keeper has died; the next one removes leftovers
            return 1
        time.sleep(retry_seconds)
        retry_seconds = min(2 * retry_seconds, LONGEST_PAUSE_SECONDS)
    peak_bytes = peak_memory(group) if group else 0
    print(json.dumps([seen.ran, seen.out_of_memory, seen.has_image, peak_bytes]), flush=True)
    if group:
        os.close(1)  # the keeper has read the result, and need not wait for the rest
        remove_cgroups(group)
    return 0


def read_state(program: str, name: str) -> dict[str, Any]:
    output = run_engine(program, "container", "inspect", "--format", "{{json .State}}", name)
    state: dict[str, Any] = json.loads(output) if output else {}
    return state


def inspect_container(program: str, image: str, state: dict[str, Any]) -> ContainerState:
    ran = bool(state) and not str(state.get("StartedAt", "")).startswith("0001-")
    if ran or run_engine(program, "image", "inspect", "--format", "{{.Id}}", image):
        return ContainerState(ran, bool(state.get("OOMKilled")))
    return ContainerState(ran=False, has_image=run_engine(program, "images", "--quiet") is None)


def remove(program: str, *names: str) -> bool:
    """Remove containers. Kill running ones before: some runtimes give them ten seconds."""
    return run_engine(program, "rm", "--force", "--volumes", *names) is not None


def remove_matching(program: str, which: str) -> bool:
    """Kill and remove all containers that match a filter; False: some may be left."""
    ids = run_engine(program, "ps", "--all", "--quiet", "--filter", which)
    if not ids:
        return ids is not None
    run_engine(program, "kill", *ids.split())
    return remove(program, *ids.split()) and not run_engine(
        program, "ps", "--all", "--quiet", "--filter", which
    )


def peak_memory(group: str) -> int:
    try:
        with open(f"{CGROUP_ROOT}/memory{group}/memory.max_usage_in_bytes", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def remove_cgroups(groups: str) -> None:
    """Remove cgroups whose processes are about to end; `groups` may be a pattern."""
    give_up_at = time.monotonic() + CGROUP_TIMEOUT_SECONDS
    while (left := glob.glob(f"{CGROUP_ROOT}/*{groups}")) and time.monotonic() < give_up_at:
        for path in [*glob.glob(f"{CGROUP_ROOT}/*{groups}/*/"), *left]:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        time.sleep(PAUSE_SECONDS)
    for path in glob.glob(f"{CGROUP_ROOT}/*{os.path.dirname(groups)}"):
        with contextlib.suppress(OSError):  # other containers use it
            os.rmdir(path)


def remove_marked(program: str, mark: str) -> bool:
    is_done = remove_matching(program, f"label={LABEL}={mark}")
    remove_cgroups(f"{cgroup_parent(mark)}/*")
    return is_done


def run_engine(*argv: str) -> str | None:
    """The output of a runtime's command; None if it fails or times out."""
    try:
        done = subprocess.run(
            argv,
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
