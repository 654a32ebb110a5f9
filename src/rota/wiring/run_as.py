"""Who the work of this agent runs as, and how many processes it may have in all. [I/O]"""

import os
import pwd
import stat
from pathlib import Path

from rota.config import AgentConfig, ConfigError
from rota.keeper.process.users import NARROW
from rota.model.limits import PIDS_MAX
from rota.runtimes.process import OWN, SELF, RunLimits

PIDS_LEAST = 16  # for all the work of a node
_KERNEL = Path("/proc/sys/kernel")
_UID_MAP = Path("/proc/self/uid_map")


def run_limits(config: AgentConfig, directory: Path) -> RunLimits:
    """ConfigError where work could not run so."""
    if config.pids_max is not None and not PIDS_LEAST <= config.pids_max <= PIDS_MAX:
        problem = f"{config.pids_max} is no number of processes for a node"
        raise ConfigError("pids_max", problem, f"write {PIDS_LEAST} to {PIDS_MAX}")
    run_as = config.run_as or (OWN if may_become_others() else SELF)
    if run_as != SELF:
        _check(run_as)
        check_way(directory)
    return RunLimits(run_as, config.pids_max or _half_of_all_pids(), config.no_new_privs)


def may_become_others() -> bool:
    """Whether this is root, in a user namespace that has the users which jobs are given.

    `unshare --map-root-user` makes a root that cannot become anybody: setresuid fails with EINVAL.
    """
    return os.geteuid() == 0 and _is_mapped(*NARROW)


def _is_mapped(first: int, last: int) -> bool:
    lines = (map(int, line.split()) for line in _UID_MAP.read_text().splitlines())
    return any(begin <= first and last < begin + count for begin, _, count in lines)


def _check(run_as: str) -> None:
    if os.geteuid() != 0:
        problem = f"{run_as!r} is another user, and only root can become one"
        raise ConfigError("run_as", problem, "write self, or start the agent as root")
    if run_as == OWN or run_as.isdecimal():
        return
    try:
        pwd.getpwnam(run_as)
    except KeyError:
        hint = "write own, self, or a user's name or number"
        raise ConfigError("run_as", f"there is no user {run_as!r} here", hint) from None


def check_way(directory: Path) -> None:
    """Raise ConfigError unless every user can pass through the directories above this one.

    The directory itself is opened by its keeper, or its dev cluster; those above it belong to others.
    """
    for above in directory.resolve().parents:
        if above.exists() and not above.stat().st_mode & stat.S_IXOTH:
            problem = f"the work's users cannot reach it: {above} is closed to them"
            hint = 'name another directory, as /var/lib/rota/agent, or write run_as = "self"'
            raise ConfigError("data_dir", problem, hint)


def _half_of_all_pids() -> int:
    """The rest is for everything else on this machine."""
    return min(int((_KERNEL / name).read_text()) for name in ("pid_max", "threads-max")) // 2
