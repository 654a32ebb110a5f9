"""Who the work of an agent runs as: what cannot be is refused at its start, by name and with the reason."""

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


def test_root_gives_each_job_a_user_and_others_are_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, 0)
    assert run_limits(AgentConfig(), REACHABLE).run_as == "own"
    become(monkeypatch, 1000)

    assert run_limits(AgentConfig(), REACHABLE).run_as == "self"


def test_a_root_that_cannot_become_others_is_itself() -> None:
    """As in a container without further users: `own` would make every start fail."""
    asked = "from rota.wiring.run_as import may_become_others as may; print(may())"
    alone = ["unshare", "--user", "--map-root-user", sys.executable, "-c", asked]
    said = subprocess.run(alone, capture_output=True, text=True, check=True).stdout

    assert said == "False\n"


@pytest.mark.parametrize("run_as", ["own", "nobody", "1234"])
def test_who_is_not_root_becomes_nobody_else(monkeypatch: pytest.MonkeyPatch, run_as: str) -> None:
    become(monkeypatch, 1000)
    error = refused(REACHABLE, run_as=run_as)

    assert error.field == "run_as"
    assert "only root can become" in str(error)


def test_a_user_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_bound_that_leaves_no_room_is_refused(pids_max: int) -> None:
    assert refused(REACHABLE, run_as="self", pids_max=pids_max).field == "pids_max"


def test_the_bound_on_processes_comes_from_flag_or_variable_or_the_machine(tmp_path: Path) -> None:
    options = AgentOptions(data_dir=str(tmp_path), run_as="self")
    said = agent_config(options, {"ROTA_PIDS_MAX": "500"})
    unsaid = agent_config(options, {})

    assert run_limits(said, tmp_path).pids_max == 500
    assert (run_limits(unsaid, tmp_path).pids_max or 0) > 1000
    with pytest.raises(ConfigError, match="ROTA_PIDS_MAX"):
        agent_config(options, {"ROTA_PIDS_MAX": "many"})
