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

from rota.keeper.container.argv import LABEL, Seen, groups_of

ASK_SECONDS = 60.0  # a runtime that says nothing for so long is asked again
PAUSE_SECONDS = 0.1
GROUP_SECONDS = 5.0
GROUPS = "/sys/fs/cgroup"
LONGEST_PAUSE_SECONDS = 5.0


def main(task: str) -> int:
    """An object of keeper (its pid), program, name, image, code (negative: of a signal), group, was_made."""
    said = json.loads(task)
    program, name, code, group = said["program"], said["name"], said["code"], said["group"]
    state = state_of(program, name) if code else {}  # of one that ended well there is nothing to be asked
    seen = look(program, said["image"], state) if code else Seen()
    has_ended = not state.get("Running")
    pause_seconds = PAUSE_SECONDS
    while not (has_ended and remove(program, name)) and not remove_all(program, f"name=^{name}$"):
        if not said["was_made"]:  # by its own word, and now it says nothing
            break
        if os.getppid() != said["keeper"]:  # that is gone; the next one goes on
            return 1
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
    peak_bytes = peak_of(group) if group else 0
    print(json.dumps([seen.ran, seen.out_of_memory, seen.has_image, peak_bytes]), flush=True)
    if group:
        os.close(1)  # whoever waits has all it wants
        remove_groups(group)
    return 0


def state_of(program: str, name: str) -> dict[str, Any]:
    said = ask(program, "container", "inspect", "--format", "{{json .State}}", name)
    state: dict[str, Any] = json.loads(said) if said else {}
    return state


def look(program: str, image: str, state: dict[str, Any]) -> Seen:
    ran = bool(state) and not str(state.get("StartedAt", "")).startswith("0001-")
    if ran or ask(program, "image", "inspect", "--format", "{{.Id}}", image):
        return Seen(ran, bool(state.get("OOMKilled")))
    return Seen(ran=False, has_image=ask(program, "images", "--quiet") is None)


def remove(program: str, *names: str) -> bool:
    """One that runs is given ten seconds by some runtimes: such are to be killed before."""
    return ask(program, "rm", "--force", "--volumes", *names) is not None


def remove_all(program: str, which: str) -> bool:
    """Kill and remove every container of which this holds; False: some may be left."""
    there = ask(program, "ps", "--all", "--quiet", "--filter", which)
    if not there:
        return there is not None
    ask(program, "kill", *there.split())
    return remove(program, *there.split()) and not ask(program, "ps", "--all", "--quiet", "--filter", which)


def peak_of(group: str) -> int:
    try:
        with open(f"{GROUPS}/memory{group}/memory.max_usage_in_bytes", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def remove_groups(groups: str) -> None:
    """What is in them ends by itself, soon; `groups` may be a pattern."""
    give_up_at = time.monotonic() + GROUP_SECONDS
    while (left := glob.glob(f"{GROUPS}/*{groups}")) and time.monotonic() < give_up_at:
        for path in [*glob.glob(f"{GROUPS}/*{groups}/*/"), *left]:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        time.sleep(PAUSE_SECONDS)
    for path in glob.glob(f"{GROUPS}/*{os.path.dirname(groups)}"):
        with contextlib.suppress(OSError):  # others use it
            os.rmdir(path)


def remove_marked(program: str, mark: str) -> bool:
    is_done = remove_all(program, f"label={LABEL}={mark}")
    remove_groups(f"{groups_of(mark)}/*")
    return is_done


def ask(*words: str) -> str | None:
    """What it answers; None: it does not, or says no."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
