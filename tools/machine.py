"""Install the Debian packages that make targets need: `python3 tools/machine.py venv|tests`.

It runs before `.venv` exists, so it uses only the standard library. With apt and root (or sudo without a
password) it installs the missing packages. Otherwise it prints their names and still succeeds: the tests that
need them are left out, and the last lines of the test run say so.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

# The commands that tests run, and the Debian packages that contain them. runc is installed before podman,
# which would otherwise install crun: crun does not work if both versions of control groups are mounted.
COMMANDS = {
    "runc": "runc",
    "podman": "podman",
    "busybox": "busybox-static",
    "bwrap": "bubblewrap",
    "linux.uml": "user-mode-linux",
    "qemu-system-x86_64": "qemu-system-x86",
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "ip": "iproute2",
    "openssl": "openssl",
    "curl": "curl",
    "cc": "gcc libc6-dev",  # gcc only recommends libc6-dev
}
ALONE = ("runc",)  # installed before the others


def main(purpose: str) -> int:
    match purpose:
        case "venv":
            missing = [] if find_spec("ensurepip") else ["python3-venv"]
        case "tests":
            absent = [packages for name, packages in COMMANDS.items() if shutil.which(name) is None]
            missing = list(dict.fromkeys(" ".join(absent).split()))
        case _:
            print("usage: python3 tools/machine.py venv|tests", file=sys.stderr)
            return 2
    if missing:
        install(missing)
    return 0


def install(packages: list[str]) -> None:
    apt = apt_get()
    if apt is None:
        print(f"not installed, because apt and root are needed: {', '.join(packages)}", file=sys.stderr)
        return
    print(f"installing {', '.join(packages)}", file=sys.stderr)
    run([*apt, "update"])
    first = [package for package in packages if package in ALONE]
    rest = [package for package in packages if package not in ALONE]
    for together in (first, rest):
        # One unavailable package must not prevent the installation of the others.
        if together and not add(apt, together):
            for package in together:
                if not add(apt, [package]):
                    print(f"{package} could not be installed", file=sys.stderr)


def apt_get() -> list[str] | None:
    """The apt-get command line, with sudo if needed; None without apt-get or without the rights."""
    program = shutil.which("apt-get")
    if program is None:
        return None
    # RUNLEVEL=1 prevents the start of the packages' services.
    command = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", program, "--quiet", "--yes"]
    if os.geteuid() == 0:
        return command
    sudo = shutil.which("sudo")
    if sudo is None or not run([sudo, "--non-interactive", "true"]):
        return None
    return [sudo, "--non-interactive", *command]


def add(apt: list[str], packages: list[str]) -> bool:
    return run([*apt, "install", "--no-install-recommends", *packages])


def run(command: list[str]) -> bool:
    """Run a command and return whether it succeeded; its output is printed only if it failed."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout.strip()[-2000:], file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
