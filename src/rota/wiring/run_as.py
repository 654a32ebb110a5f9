"""The users that the tasks of an agent run as, and the limit of their processes. [I/O]"""

import os
import pwd
import stat
from pathlib import Path

from rota.config import AgentConfig, ConfigError
from rota.keeper.process.users import NARROW
from rota.model.limits import PIDS_MAX
from rota.runtimes.process import OWN, SELF, RunLimits

PIDS_LEAST = 16  # for all tasks of a node together
_KERNEL = Path("/proc/sys/kernel")
_UID_MAP = Path("/proc/self/uid_map")


def run_limits(config: AgentConfig, directory: Path) -> RunLimits:
    """The limits that are configured. Raises ConfigError if tasks could not run that way."""
    if config.pids_max is not None and not PIDS_LEAST <= config.pids_max <= PIDS_MAX:
        problem = f"{config.pids_max} is not a possible number of processes for a node"
        raise ConfigError("pids_max", problem, f"write {PIDS_LEAST} to {PIDS_MAX}")
    run_as = config.run_as or (OWN if may_become_others() else SELF)
    if run_as != SELF:
        _check(run_as)
        check_reachable(directory)
    return RunLimits(run_as, config.pids_max or _half_of_all_pids(), config.no_new_privs)


def may_become_others() -> bool:
    """Whether this is root, in a user namespace that maps the users which jobs run as.

    The root of `unshare --map-root-user` cannot become another user: setresuid fails with EINVAL.
    """
    return os.geteuid() == 0 and _is_mapped(*NARROW)


def _is_mapped(first: int, last: int) -> bool:
    lines = (map(int, line.split()) for line in _UID_MAP.read_text().splitlines())
    return any(start <= first and last < start + count for start, _, count in lines)


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


def check_reachable(directory: Path) -> None:
    """Raise ConfigError unless every user can pass through the directories above this one.

    The directory itself is opened by its keeper, or its dev cluster; those above it are not Rota's to change.
    """
    for above in directory.resolve().parents:
        if above.exists() and not above.stat().st_mode & stat.S_IXOTH:
            problem = f"the users of tasks cannot reach it: {above} is closed to them"
            hint = 'name another directory, as /var/lib/rota/agent, or write run_as = "self"'
            raise ConfigError("data_dir", problem, hint)


def _half_of_all_pids() -> int:
    """Half of the machine's process ids; the other half is for everything else on it."""
    return min(int((_KERNEL / name).read_text()) for name in ("pid_max", "threads-max")) // 2
