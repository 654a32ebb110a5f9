"""Traces: a job runs as long as recorded, with its resources; unusable rows are counted."""

import random
import shutil
from pathlib import Path

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.model.amounts import CPU, DISK, GPU, MEMORY
from rota.sim.workloads.toml_file import BadWorkload, Workload, read

DATA = Path(__file__).parent / "data"
SWF = DATA / "small.swf"
PODS = DATA / "openb_pod_list_small.csv"
NODE_LIST = DATA / "openb_node_list_all_node.csv"
MIB = 2**20


def left_out(workload: Workload) -> list[str]:
    return [str(rows) for rows in workload.left_out]


def test_the_machine_of_a_log_is_one_node() -> None:
    (node,) = read(SWF).nodes

    assert node.count == 1
    assert node.capacity[CPU] == 8000


def test_a_logged_job_is_one_task_that_runs_as_long_as_it_did() -> None:
    first = read(SWF).recorded[0]
    spec = parse_spec(first.spec)

    assert (spec.name, spec.count, spec.needs, spec.timeout_seconds) == ("swf-1", 1, {CPU: 4000}, 90.0)
    assert first.behaviour.run_ms(random.Random(1)) == 60_000
    assert first.estimate_ms == 90_000


def test_logged_jobs_arrive_relative_to_the_first_one() -> None:
    jobs = list(read(SWF).arrivals(random.Random(1)))

    assert [(job.spec["name"], job.at_ms) for job in jobs] == [
        ("swf-1", 0),
        ("swf-2", 0),
        ("swf-3", 10_000),
        ("swf-10", 20_000),
        ("swf-5", 40_000),
    ]


def test_a_trace_ends_after_the_requested_hours() -> None:
    assert len(list(read(SWF).arrivals(random.Random(1), hours=15 / 3600))) == 3


def test_a_job_that_reached_its_limit_is_not_killed_by_it() -> None:
    job = read(SWF).recorded[1]

    assert job.estimate_ms == job.behaviour.median_ms == 30_000
    assert job.spec["timeout"] > 30


def test_missing_values_of_a_log_have_defaults() -> None:
    job = read(SWF).recorded[2]

    assert (job.spec["cpu"], job.behaviour.median_ms, job.behaviour.fail_share) == (2, 12_500, 1.0)
    assert "timeout" not in job.spec
    assert job.estimate_ms is None


def test_unusable_rows_of_a_log_are_counted() -> None:
    assert left_out(read(SWF)) == [
        "1 row: canceled before the start",
        "1 row: more asked for than any node has",
        "1 row: no cpu asked for",
        "1 row: no run time",
        "1 row: part of a job that another row sums up",
    ]


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("", "MaxProcs: is missing", "; MaxProcs: 100"),
        ("; MaxProcs: 0\n", "MaxProcs: 0 is not a number of processors", "; MaxProcs: 100"),
        ("; MaxProcs: 4\n", "has no job that could be run", "None"),
        ("; MaxProcs: 4\n1 2 3\n", "line 2: has 3 columns", "18"),
        ("; MaxProcs: 4\n" + "1 " * 17 + "x\n", "line 2: holds something that is not a number", "-1"),
        ("; MaxProcs: 4\n1 0 0 1e99 " + "1 " * 14 + "\n", "line 2: holds something", "-1"),
        ("; MaxProcs: 4\n1 0 0 nan " + "1 " * 14 + "\n", "line 2: holds something", "-1"),
        ("; MaxProcs: 4\n1 0 0 -1 " + "1 " * 14 + "\n", "has no job that could be run", "no run time"),
    ],
)
def test_an_unusable_log_says_why(tmp_path: Path, text: str, problem: str, hint: str) -> None:
    path = tmp_path / "bad.swf"
    path.write_text(text)

    with pytest.raises(BadWorkload, match=f"bad.swf: {problem}") as refused:
        read(path)
    assert hint in str(refused.value.hint)


def test_a_log_without_maxprocs_has_maxnodes_processors(tmp_path: Path) -> None:
    path = tmp_path / "old.swf"
    path.write_bytes(SWF.read_bytes().replace(b"MaxProcs: 8", b"MaxNodes:   16 ") + b"; \xe9\n")

    assert read(path).cpu_milli == 16_000
    assert len(read(path).recorded) == 6


def test_equal_openb_nodes_are_one_group() -> None:
    plain, v100, p100 = read(PODS).nodes

    assert (plain.count, plain.labels) == (2, {})
    assert plain.capacity == {CPU: 32_000, MEMORY: 262_144 * MIB, DISK: 0, GPU: 0}
    assert (v100.count, v100.capacity[GPU], v100.labels) == (1, 8000, {"gpu_model": "V100M32"})
    assert (p100.count, p100.capacity[GPU], p100.labels) == (1, 2000, {"gpu_model": "P100"})


def test_a_pod_is_one_task_that_runs_as_long_as_it_was_scheduled() -> None:
    jobs = list(read(PODS).arrivals(random.Random(1)))

    assert [(job.spec["name"][-4:], job.at_ms, job.behaviour.median_ms) for job in jobs] == [
        ("0002", 0, 180_000),
        ("0000", 10_000, 600_000),
        ("0001", 20_000, 290_000),
        ("0007", 80_000, 1_000),
    ]
    assert [job.behaviour.fail_share for job in jobs] == [1.0, 0.0, 0.0, 0.0]


def test_a_pod_requests_its_gpu_models() -> None:
    spec = parse_spec(read(PODS).recorded[0].spec)

    assert spec.needs == {CPU: 3152, MEMORY: 5600 * MIB, GPU: 1000}
    assert [str(condition) for condition in spec.where] == ["gpu_model in V100M16,V100M32"]


def test_a_pod_requests_its_share_of_a_gpu() -> None:
    shares = [parse_spec(job.spec).needs.get(GPU, 0) for job in read(PODS).recorded]

    assert shares == [1000, 1000, 460, 0]


def test_unusable_pods_are_counted() -> None:
    assert left_out(read(PODS)) == [
        "1 row: canceled before the start",
        "1 row: more asked for than any node has",
        "1 row: no cpu asked for",
        "1 row: no run time",
    ]


def test_pods_without_a_list_of_nodes_are_refused(tmp_path: Path) -> None:
    shutil.copy(PODS, tmp_path)

    with pytest.raises(BadWorkload, match="no list of nodes beside it") as refused:
        read(tmp_path / PODS.name)
    assert "openb_node_list_all_node.csv" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("replaced", "by", "problem"),
    [
        ("creation_time", "born", "creation_time: there is no such column"),
        ("openb-pod-0000,12000", "openb-pod-0000,many", "line 2.cpu_milli: 'many' cannot be used"),
        ("openb-pod-0000,12000", "openb-pod-0000,-5", "line 2.cpu_milli: '-5' cannot be used"),
        ("openb-pod-0000,12000", "a b,12000", "line 2.name: 'a b' is not a name"),
        ("5600,5000\n", "5600\n", "line 2: has too few columns"),
    ],
)
def test_an_unusable_list_of_pods_says_where(tmp_path: Path, replaced: str, by: str, problem: str) -> None:
    shutil.copy(NODE_LIST, tmp_path)
    path = tmp_path / PODS.name
    path.write_text(PODS.read_text().replace(replaced, by, 1))

    with pytest.raises(BadWorkload) as refused:
        read(path)
    assert problem in str(refused.value)


def test_an_empty_list_of_nodes_is_named(tmp_path: Path) -> None:
    shutil.copy(PODS, tmp_path)
    (tmp_path / NODE_LIST.name).write_text("sn,cpu_milli,memory_mib,gpu,model\n")

    with pytest.raises(BadWorkload, match=f"with {NODE_LIST.name}: names no node"):
        read(tmp_path / PODS.name)
