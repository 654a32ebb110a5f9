"""The audit log: one whole line per entry, private, followed through rotation, never in the way."""

import json
import os
import resource
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rota.identity import audit
from rota.identity.audit import AuditEntry, AuditLog
from rota.identity.tokens import new_secret
from rota.model.limits import AUDIT_FILES, AUDIT_KINDS_MAX
from rota.testing.processes import until


def entry(target: str = "job 7f3") -> AuditEntry:
    return AuditEntry(
        at_ms=1,
        who="ci",
        token="a1",
        action="job.cancel",
        target=target,
        outcome="allowed",
        origin="127.0.0.1",
    )


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_entry_is_one_line_with_the_named_fields(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.jsonl").write(entry("a\nb"))

    assert lines(tmp_path / "audit.jsonl") == [
        {
            "at_ms": 1,
            "who": "ci",
            "token": "a1",
            "action": "job.cancel",
            "target": "a\nb",
            "outcome": "allowed",
            "from": "127.0.0.1",
        }
    ]


def test_a_restart_appends(tmp_path: Path) -> None:
    for target in ("one", "two"):
        log = AuditLog(tmp_path / "audit.jsonl")
        log.write(entry(target))
        log.close()

    assert [line["target"] for line in lines(tmp_path / "audit.jsonl")] == ["one", "two"]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    loose = tmp_path / "loose.jsonl"
    loose.touch(0o644)
    for path in (tmp_path / "made" / "audit.jsonl", loose):
        AuditLog(path).write(entry())

        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_a_symlink_in_its_place_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="symbolic link"):
        AuditLog(tmp_path / "audit.jsonl")


def test_secrets_and_oversized_values_do_not_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    secret = new_secret("rota_")
    AuditLog(path).write(entry("x" * 990 + secret))
    AuditLog(path).write(entry("\udcff" + "x" * 2000))

    assert secret[:20] not in path.read_text()
    assert [len(str(line["target"])) for line in lines(path)] == [998, 1000]


def test_writing_goes_on_in_a_new_file_after_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(entry("one"))
    path.rename(tmp_path / "audit.jsonl.1")
    log.write(entry("two"))
    log.write(entry("three"))

    assert [line["target"] for line in lines(tmp_path / "audit.jsonl.1")] == ["one"]
    assert [line["target"] for line in lines(path)] == ["two", "three"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rotation_by_copy_and_truncate_leaves_no_hole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(entry("one"))
    os.truncate(path, 0)
    log.write(entry("two"))

    assert [line["target"] for line in lines(path)] == ["two"]


def test_a_full_disk_is_counted_and_not_raised() -> None:
    log = AuditLog(Path("/dev/full"))
    log.write(entry())
    log.write(entry())

    assert log.dropped == 2


def test_a_line_torn_by_a_full_disk_damages_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.write(entry("one"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        log.write(entry("torn"))
        log.write(entry("lost"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.write(entry("two"))

    whole = path.read_text().splitlines()
    assert log.dropped == 2
    assert [json.loads(line)["target"] for line in (whole[0], whole[2])] == ["one", "two"]
    assert len(whole) == 3


def test_a_line_torn_by_a_crash_damages_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"at_ms": 1, "wh')
    AuditLog(path).write(entry("two"))

    assert json.loads(path.read_text().splitlines()[1])["target"] == "two"


def test_lines_lost_with_a_missing_directory_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    log = AuditLog(path)
    path.unlink()
    path.parent.rmdir()
    log.write(entry("lost"))
    path.parent.mkdir()
    log.write(entry("two"))

    assert log.dropped == 1
    assert [line["target"] for line in lines(path)] == ["two"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: log.write(entry(f"{number}" * 50)), range(400)))

    assert {line["target"] for line in lines(path)} == {f"{number}" * 50 for number in range(400)}


def refusal(origin: str, who: str = "", action: str = "GET") -> AuditEntry:
    return AuditEntry(
        at_ms=1, who=who, action=action, target="/v1/jobs", outcome="401 unauthenticated", origin=origin
    )


def test_equal_refusals_are_two_lines_whatever_their_number(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(5000):
        log.write_counted(refusal(f"ipv4:10.0.0.1:{number}"))
    log.write_counted(refusal("10.0.0.2"))
    log.write_counted(refusal("10.0.0.2", who="ci"))
    log.close()

    found = [(line["from"], line["who"], line.get("count", 1)) for line in lines(path)]
    assert found == [
        ("ipv4:10.0.0.1:0", "", 1),
        ("10.0.0.2", "", 1),
        ("10.0.0.2", "ci", 1),
        ("ipv4:10.0.0.1:4999", "", 4999),
    ]


def test_kinds_of_refusals_are_counted_apart_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(AUDIT_KINDS_MAX + 500):
        log.write_counted(refusal(f"10.0.{number // 256}.{number % 256}"))
    log.close()

    assert len(lines(path)) <= AUDIT_KINDS_MAX + 2
    assert sum(int(str(line.get("count", 1))) for line in lines(path)) == AUDIT_KINDS_MAX + 500


def test_counts_are_written_when_their_interval_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "AUDIT_COUNT_SECONDS", 0.05)
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for _ in range(3):
        log.write_counted(refusal("10.0.0.1"))

    until(lambda: len(lines(path)) == 2, "the interval is over")
    log.write_counted(refusal("10.0.0.1"))
    log.close()
    assert [line.get("count", 1) for line in lines(path)] == [1, 2, 1]


def test_a_full_file_is_rotated_and_the_oldest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "AUDIT_FILE_BYTES", 1000)
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(200):
        log.write(entry(f"job {number}"))
    log.close()

    kept = sorted(tmp_path.iterdir(), key=lambda one: one.name)
    assert [file.name for file in kept] == [
        "audit.jsonl",
        *(f"audit.jsonl.{n}" for n in range(1, AUDIT_FILES)),
    ]
    assert all(file.stat().st_size <= 1000 and stat.S_IMODE(file.stat().st_mode) == 0o600 for file in kept)
    newest = [line["target"] for file in [path, kept[1]] for line in reversed(lines(file))]
    assert newest == [f"job {number}" for number in range(199, 199 - len(newest), -1)]
    assert log.dropped == 0
