"""The users that tasks of an agent run as; impossible settings are refused at the start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota.config import AgentConfig, AgentOptions, ConfigError, agent_config
from rota.wiring.run_as import run_limits

REACHABLE = Path("/var/lib/rota-of-a-test")  # is never made


def refused(directory: Path, **options: object) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        run_limits(AgentConfig(**options), directory)  # type: ignore[arg-type]  # options of several types
    return error.value


def become(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_root_runs_each_job_as_its_own_user_and_others_as_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, 0)
    assert run_limits(AgentConfig(), REACHABLE).run_as == "own"
    become(monkeypatch, 1000)

    assert run_limits(AgentConfig(), REACHABLE).run_as == "self"


def test_a_root_that_cannot_change_users_runs_jobs_as_itself() -> None:
    """As in a container without further users: `own` would make every start fail."""
    asked = "from rota.wiring.run_as import may_become_others as may; print(may())"
    alone = ["unshare", "--user", "--map-root-user", sys.executable, "-c", asked]
    output = subprocess.run(alone, capture_output=True, text=True, check=True).stdout

    assert output == "False\n"


@pytest.mark.parametrize("run_as", ["own", "nobody", "1234"])
def test_an_agent_that_is_not_root_cannot_run_as_another_user(
    monkeypatch: pytest.MonkeyPatch, run_as: str
) -> None:
    become(monkeypatch, 1000)
    error = refused(REACHABLE, run_as=run_as)

    assert error.field == "run_as"
    assert "only root can become" in str(error)


def test_an_unknown_user_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, 0)

    assert "no user 'nosuchuser'" in str(refused(REACHABLE, run_as="nosuchuser"))


def test_a_directory_no_user_can_reach_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    become(monkeypatch, 0)
    tmp_path.chmod(0o700)
    error = refused(tmp_path / "agent", run_as="own")

    assert error.field == "data_dir"
    assert "closed to them" in str(error)
    assert run_limits(AgentConfig(run_as="self"), tmp_path / "agent").run_as == "self"


@pytest.mark.parametrize("pids_max", [0, 15, 1 << 23])
def test_a_process_limit_that_is_too_low_is_refused(pids_max: int) -> None:
    assert refused(REACHABLE, run_as="self", pids_max=pids_max).field == "pids_max"


def test_the_process_limit_comes_from_flag_variable_or_machine(tmp_path: Path) -> None:
    options = AgentOptions(data_dir=str(tmp_path), run_as="self")
    config = agent_config(options, {"ROTA_PIDS_MAX": "500"})
    default = agent_config(options, {})

    assert run_limits(config, tmp_path).pids_max == 500
    assert (run_limits(default, tmp_path).pids_max or 0) > 1000
    with pytest.raises(ConfigError, match="ROTA_PIDS_MAX"):
        agent_config(options, {"ROTA_PIDS_MAX": "many"})
