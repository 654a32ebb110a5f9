"""Command lines of container runtimes, and the classification of their exits."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rota.keeper.container.argv import (
    ContainerLaunch,
    ContainerNotAllowed,
    ContainerState,
    KeeperContainer,
    KeeperContainerEngine,
    KeeperMount,
    allowed_mounts,
    allowed_user,
    classify_exit,
    container_name,
    run_argv,
)
from rota.keeper.containers import last_line
from rota.keeper.limits.limits import AttemptLimits
from tests.machine import needs

DOCKER = KeeperContainerEngine("docker", "/usr/bin/docker", init=True)
PODMAN = KeeperContainerEngine("podman", "/usr/bin/podman")
START = ContainerLaunch(
    name="rota-m-7-0-1",
    mark="m",
    container=KeeperContainer("alpine:3.20", limits=AttemptLimits(64 << 20, 1500, 50, 500)),
    mounts=(KeeperMount("/w/7", "/w/7", read_only=False), KeeperMount("/data", "/in", read_only=True)),
    user="1000:1000",
    workdir="/w/7",
    env_file="/c/7.env",
    cid_file="/c/7.cid",
    command=("sh", "-c", "echo --privileged"),
)


def test_docker_gets_all_options_on_its_command_line() -> None:
    assert " ".join(run_argv(DOCKER, START)) == (
        "/usr/bin/docker run --name rota-m-7-0-1 --label rota.keeper=m --cidfile /c/7.cid --pull never"
        " --log-driver none --network none --user 1000:1000 --workdir /w/7 --env-file /c/7.env"
        " --security-opt no-new-privileges --cap-drop ALL"
        " --cpu-shares 512 --memory 67108864b --memory-swap 67108864b --cpus 1.5 --pids-limit 50"
        " --mount type=bind,source=/w/7,target=/w/7 --mount type=bind,source=/data,target=/in,readonly"
        " --init alpine:3.20 sh -c echo --privileged"
    )


def test_podman_gets_its_own_limits_and_a_cgroup_parent_where_it_misses_oom_kills() -> None:
    argv = run_argv(PODMAN, replace(START, group="/rota-m/7"))

    assert argv[argv.index("--cgroup-parent") + 1] == "/rota-m/7"
    assert "--init" not in argv
    assert any(argument.startswith("nofile=") for argument in argv)


def test_without_limits_only_the_number_of_processes_is_bounded() -> None:
    argv = run_argv(DOCKER, replace(START, container=KeeperContainer("alpine:3.20")))

    assert not {"--memory", "--cpus"} & set(argv)
    assert argv[argv.index("--pids-limit") + 1] == "2048"


def test_only_an_allowed_root_keeps_capabilities() -> None:
    root = replace(START, user="0")

    assert "--cap-drop" in run_argv(DOCKER, root)
    assert "--cap-drop" in run_argv(replace(DOCKER, root=True), START)
    assert "--cap-drop" not in run_argv(replace(DOCKER, root=True), root)


def test_a_container_name_is_unique_per_attempt() -> None:
    assert container_name("0123456789abcdef", ("7", 3, 2)) == "rota-0123456789ab-7-3-2"


@pytest.mark.parametrize("user", ["0", "0:1000", "00"])
def test_root_is_refused_however_it_is_written(user: str) -> None:
    with pytest.raises(ContainerNotAllowed, match="as root"):
        allowed_user(DOCKER, user, "1:1")


@pytest.mark.parametrize("source", ["/etc", "{data}x", "{data}/../x", "{data}/link", "/"])
def test_a_mount_outside_allowed_directories_is_refused(tmp_path: Path, source: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "datax").mkdir()
    (data / "link").symlink_to(tmp_path / "x")
    asked = KeeperMount(source.format(data=data), "/in", read_only=True)

    with pytest.raises(ContainerNotAllowed, match="does not let"):
        allowed_mounts(replace(DOCKER, mounts=(str(data),)), [asked], "")


def test_an_allowed_directory_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "real")
    asked = KeeperMount(f"{tmp_path}/data/sub", "/in", read_only=False)

    granted = allowed_mounts(replace(DOCKER, mounts=(f"{tmp_path}/data",)), [asked], "")

    (mount,) = granted.mounts
    assert (mount.target, mount.read_only) == ("/in", False)
    assert mount.source == f"{tmp_path}/real/sub"


@needs("containers")
@pytest.mark.parametrize("is_directory", [True, False])
def test_the_checked_source_is_mounted_also_after_a_rename(tmp_path: Path, *, is_directory: bool) -> None:
    """The source has a mount below it, which must outlive the pin."""
    data, pins = tmp_path / "data", tmp_path / "pins"
    (data / "sub" / "below").mkdir(parents=True)
    (data / "sub" / "flag").write_text("own")
    path = data / "sub" if is_directory else data / "sub" / "flag"
    subprocess.run(["mount", "-t", "tmpfs", "of-a-test", data / "sub" / "below"], check=True)
    try:
        asked = KeeperMount(str(path), "/in", read_only=False)
        podman = replace(PODMAN, mounts=(str(data),))
        granted = allowed_mounts(podman, [asked], f"{pins}/pin")
        path.rename(path.with_name("before"))
        path.symlink_to("/etc/hostname")
        pin = Path(granted.mounts[0].source)
        found = [entry.name for entry in pin.iterdir()] if is_directory else [pin.read_text()]
        del granted
        before = data / "before" / "below" if is_directory else data / "sub" / "below"
        is_still_there = before.is_mount()
    finally:
        subprocess.run(["umount", "of-a-test"], check=True)

    assert sorted(found) == (["below", "flag"] if is_directory else ["own"])
    assert list(pins.iterdir()) == []
    assert is_still_there
    assert (data / ("before/flag" if is_directory else "sub/before")).read_text() == "own"


@pytest.mark.parametrize("link", ["/proc/self/root/etc", "/proc/self/cwd", "loop"])
def test_links_of_proc_and_link_loops_are_not_followed(tmp_path: Path, link: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loop").symlink_to(link)
    asked = KeeperMount(f"{tmp_path}/data/loop", "/in", read_only=False)

    with pytest.raises(ContainerNotAllowed):
        allowed_mounts(replace(DOCKER, mounts=(f"{tmp_path}/data",)), [asked], "")


def test_of_two_rules_for_a_directory_the_less_strict_applies(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    engine = replace(DOCKER, mounts=(f"{tmp_path}:ro", f"{tmp_path}/sub"))

    granted = allowed_mounts(engine, [KeeperMount(f"{tmp_path}/sub", "/in", read_only=False)], "")

    assert not granted.mounts[0].read_only


@pytest.mark.parametrize(
    ("code", "seen", "wanted"),
    [
        (0, ContainerState(), (0, None, False)),
        (125, ContainerState(ran=True), (125, None, False)),
        (125, ContainerState(ran=False), (125, "its container cannot be started here: it said so", True)),
        (125, ContainerState(ran=False, has_image=False), (127, "this node has no image alpine:3.20", False)),
        (126, ContainerState(ran=False), (126, "it said so", False)),
        (127, ContainerState(ran=False), (127, "it said so", False)),
        (137, ContainerState(), (137, None, False)),
        (137, ContainerState(out_of_memory=True), (137, "out of memory: limit 64 MiB", False)),
        (137, ContainerState(peak_bytes=70 << 20), (137, "out of memory: limit 64 MiB, peak 64 MiB", False)),
        (137, ContainerState(peak_bytes=20 << 20), (137, None, False)),
        (3, ContainerState(peak_bytes=64 << 20), (3, None, False)),
        (None, ContainerState(ran=False), (None, None, False)),
    ],
)
def test_container_exits_are_classified(
    code: int | None, seen: ContainerState, wanted: tuple[int | None, str | None, bool]
) -> None:
    verdict = classify_exit(code, seen, START, "it said so")

    exit_code, reason, is_refused = wanted
    assert (verdict.exit_code, verdict.is_refused) == (exit_code, is_refused)
    assert (verdict.reason or "").startswith(reason or "")
    assert (verdict.reason is None) == (reason is None)


def test_a_failed_pull_is_reported_with_the_runtimes_message() -> None:
    start = replace(START, container=KeeperContainer("alpine:3.20", pull="missing"))

    verdict = classify_exit(125, ContainerState(ran=False, has_image=False), start, "no such host")

    assert verdict.reason == "image alpine:3.20 cannot be pulled: no such host"


def test_hints_at_the_runtimes_manual_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "err"
    path.write_text("earlier\nError: no such thing\nSee 'docker run --help'.\n\n")

    assert last_line(os.fsencode(path), 0) == "no such thing"
    assert last_line(os.fsencode(path), path.stat().st_size) == ""
    assert last_line(os.fsencode(tmp_path / "none"), 0) == ""
