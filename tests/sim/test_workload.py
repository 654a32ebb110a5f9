"""read(): jobs arrive as the file describes them, the same for the same seed; bad fields are named."""

import gzip
import itertools
import random
import re
from pathlib import Path

import pytest

from rota.apiserver.spec.job import parse_spec
from rota.model.amounts import CPU, DISK, GPU, MEMORY
from rota.sim.workloads.toml_file import (
    CLUSTER_FIELDS,
    FILE_FIELDS,
    JOB_FIELDS,
    LOAD_FIELDS,
    NODE_FIELDS,
    Arrival,
    BadWorkload,
    Behaviour,
    Workload,
    read,
)
from tests.docs.snippets import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "workloads.md"
EXAMPLES = sorted((ROOT / "examples" / "workloads").glob("*.toml"))
GIB = 2**30

NODES = '[[nodes]]\ncount = 2\ncpu = 8\nmemory = "32g"\n'
LOAD = '[[load]]\nname = "ci"\nper_hour = 60\nrun_seconds = 20\n'


def written(directory: Path, text: str, name: str = "w.toml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def arrived(workload: Workload, seed: int = 7, hours: float = 1.0) -> list[Arrival]:
    return list(workload.arrivals(random.Random(seed), hours))


def test_nodes_have_the_capacity_that_they_would_report(tmp_path: Path) -> None:
    more = '[[nodes]]\ncpu = 0.5\nmemory = "1g"\ndisk = "2g"\ngpu = 1\nresources = { licence = 3 }\n'
    first, second = read(written(tmp_path, NODES + 'labels = { region = "north" }\n' + more + LOAD)).nodes

    assert (first.count, first.labels) == (2, {"region": "north"})
    assert first.capacity == {CPU: 8000, MEMORY: 32 * GIB, DISK: 0, GPU: 0}
    assert (second.count, second.labels) == (1, {})
    assert second.capacity == {CPU: 500, MEMORY: GIB, DISK: 2 * GIB, GPU: 1000, "licence": 3}


def test_a_job_is_a_valid_spec(tmp_path: Path) -> None:
    text = NODES + LOAD + 'cpu = 2\nmemory = "1g"\ncount = 3\nretries = 2\ntimeout_seconds = 600\n'
    spec = parse_spec(arrived(read(written(tmp_path, text)))[0].spec)

    assert (spec.name, spec.count, spec.retries, spec.timeout_seconds) == ("ci", 3, 2, 600.0)
    assert spec.needs == {CPU: 2000, MEMORY: GIB}


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    workload = read(EXAMPLES[0])

    assert arrived(workload, seed=1) == arrived(read(EXAMPLES[0]), seed=1)
    assert arrived(workload, seed=1) != arrived(workload, seed=2)


def test_more_hours_only_add_jobs_at_the_end() -> None:
    workload = read(ROOT / "examples" / "workloads" / "mixed.toml")
    short = arrived(workload, hours=1)

    assert arrived(workload, hours=2)[: len(short)] == short


def test_another_load_changes_no_other_jobs(tmp_path: Path) -> None:
    alone = read(written(tmp_path, NODES + LOAD))
    both = read(written(tmp_path, NODES + LOAD + LOAD.replace("ci", "extra"), "both.toml"))

    assert [job for job in arrived(both) if job.spec["name"] == "ci"] == arrived(alone)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_jobs_of_an_example_arrive_in_order_and_would_be_admitted(path: Path) -> None:
    jobs = arrived(read(path), hours=10)

    assert len(jobs) > 50
    assert all(earlier.at_ms <= later.at_ms for earlier, later in itertools.pairwise(jobs))
    assert all(parse_spec(job.spec).needs[CPU] > 0 for job in jobs)


def test_poisson_jobs_arrive_at_their_rate(tmp_path: Path) -> None:
    jobs = arrived(read(written(tmp_path, NODES + LOAD)), hours=100)

    assert 5700 < len(jobs) < 6300
    assert jobs[-1].at_ms < 100 * 3_600_000


def test_steady_jobs_arrive_at_equal_intervals(tmp_path: Path) -> None:
    jobs = arrived(
        read(written(tmp_path, NODES + LOAD + 'kind = "steady"\nafter_seconds = 30\n')), hours=0.05
    )

    assert [job.at_ms for job in jobs] == [30_000, 90_000, 150_000]


def test_jobs_of_a_burst_arrive_together_up_to_the_maximum(tmp_path: Path) -> None:
    text = NODES + LOAD + 'kind = "burst"\njobs = 3\njobs_max = 5\n'

    assert [job.at_ms for job in arrived(read(written(tmp_path, text)))] == [0, 0, 0, 60_000, 60_000]


def test_a_range_is_drawn_between_its_two_values(tmp_path: Path) -> None:
    text = NODES + LOAD + 'count = [1, 3]\ncpu = [1, 2]\nmemory = ["1g", "2g"]\n'
    specs = [job.spec for job in arrived(read(written(tmp_path, text)), hours=5)]

    assert {spec["count"] for spec in specs} == {1, 2, 3}
    assert all(1 <= spec["cpu"] <= 2 and GIB <= spec["memory"] <= 2 * GIB for spec in specs)
    assert len({spec["cpu"] for spec in specs}) > 100


def test_run_times_have_the_given_median_and_p95(tmp_path: Path) -> None:
    text = NODES + LOAD.replace("run_seconds = 20", "run_seconds = { median = 20, p95 = 120 }")
    behaviour = arrived(read(written(tmp_path, text)))[0].behaviour
    rng = random.Random(1)
    drawn = sorted(behaviour.run_ms(rng) for _ in range(20_000))

    assert 19_000 < drawn[10_000] < 21_000
    assert 110_000 < drawn[19_000] < 130_000


def test_a_single_run_time_is_exact(tmp_path: Path) -> None:
    behaviour = arrived(read(written(tmp_path, NODES + LOAD + "fail = 0.1\ndeaf = 1\n")))[0].behaviour

    assert behaviour == Behaviour(20_000, 0.0, 0.1, 1.0)
    assert behaviour.run_ms(random.Random(1)) == 20_000


def test_more_nodes_keep_the_mix() -> None:
    workload = read(ROOT / "examples" / "workloads" / "mixed.toml")

    assert [group.count for group in workload.with_nodes(5000).nodes] == [3000, 2000]
    assert workload.with_nodes(7).size == 7
    assert workload.with_nodes(1).size == 1


def test_a_file_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "w.toml.gz"
    path.write_bytes(gzip.compress((NODES + LOAD).encode()))

    assert read(path).name == "w"
    assert arrived(read(path)) == arrived(read(written(tmp_path, NODES + LOAD)))


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("", "nodes", "[[nodes]]"),
        (NODES, "load", "[[load]]"),
        ("[nodes]\ncpu = 8\n", "nodes", "[[nodes]]"),
        ("nodes = 3\n", "nodes", "[[nodes]]"),
        (NODES + LOAD + "per_huor = 3\n", "load.ci.per_huor", "per_hour"),
        ("[[lod]]\n" + NODES + LOAD, "lod", "load"),
        (NODES + "colour = 3\n" + LOAD, "nodes.1.colour", "known fields"),
        (NODES.replace("cpu = 8\n", "") + LOAD, "nodes.1.cpu", "cpu = 8"),
        (NODES.replace('"32g"', '"lots"') + LOAD, "nodes.1.memory", "512m"),
        (NODES.replace("count = 2", "count = 0") + LOAD, "nodes.1.count", "from 1"),
        (NODES.replace("count = 2", "count = 99999999") + LOAD, "nodes.1.count", "1000000"),
        (NODES.replace("cpu = 8", f"cpu = 1{'0' * 400}") + LOAD, "nodes.1.cpu", "write"),
        (NODES + "labels = { a = 1 }\n" + LOAD, "nodes.1.labels", "text"),
        (NODES + "resources = 3\n" + LOAD, "nodes.1.resources", "licence"),
        (NODES + LOAD.replace("run_seconds = 20\n", ""), "load.ci.run_seconds", "median"),
        (NODES + LOAD.replace("= 20", "= 0"), "load.ci.run_seconds", "0.001"),
        (NODES + LOAD.replace("= 20", "= { median = 2 }"), "load.ci.run_seconds", "p95"),
        (NODES + LOAD.replace("= 20", "= { median = 2, p95 = 1 }"), "load.ci.run_seconds.p95", "median"),
        (NODES + LOAD.replace("= 20", "= 1e300"), "load.ci.run_seconds", "90s"),
        (NODES + LOAD.replace("per_hour = 60\n", ""), "load.ci.per_hour", "hour"),
        (NODES + LOAD.replace("= 60", "= 0"), "load.ci.per_hour", "above 0"),
        (NODES + LOAD.replace("= 60", "= nan"), "load.ci.per_hour", "above 0"),
        (NODES + LOAD.replace("= 60", "= inf"), "load.ci.per_hour", "above 0"),
        (NODES + LOAD + 'kind = "sometimes"\n', "load.ci.kind", "poisson, steady, burst"),
        (NODES + LOAD + "jobs = 3\n", "load.ci.jobs", "burst"),
        (NODES + LOAD + "fail = 2\n", "load.ci.fail", "0 to 1"),
        (NODES + LOAD + "deaf = true\n", "load.ci.deaf", "0 to 1"),
        (NODES + LOAD + "count = [3, 1]\n", "load.ci.count", "[1, 20]"),
        (NODES + LOAD + "count = []\n", "load.ci.count", "[1, 20]"),
        (NODES + LOAD + "count = 0\n", "load.ci.count", "from 1"),
        (NODES + LOAD + "cpu = 0\n", "load.ci.cpu", "0.001"),
        (NODES + LOAD + "retries = -1\n", "load.ci.retries", "from 0"),
        (NODES + LOAD + 'run = "twice"\n', "load.ci.run", "at_least_once"),
        (NODES + LOAD + "timeout_seconds = 0\n", "load.ci.timeout", "leave it out"),
        (NODES + LOAD + 'timeout_seconds = "soon"\n', "load.ci.timeout_seconds", "90s"),
        (NODES + LOAD + "cpu = [1, 9]\n", "load.ci.cpu", "8 cpu"),
        (NODES + LOAD + "gpu = 1\n", "load.ci.gpu", "0 gpu"),
        (NODES + LOAD.replace('"ci"', '"a b"'), "load.a b.name", "letters"),
        ('name = ""\n' + NODES + LOAD, "name", "at least one"),
    ],
)
def test_a_bad_field_is_named_with_a_hint(tmp_path: Path, text: str, field: str, hint: str) -> None:
    path = written(tmp_path, text)

    with pytest.raises(BadWorkload) as refused:
        read(path)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{path}: {field}: ")
    assert hint in str(refused.value.hint)


def test_a_job_that_fits_on_no_node_is_named(tmp_path: Path) -> None:
    text = NODES + '[[nodes]]\ncpu = 2\nmemory = "64g"\n' + LOAD + 'cpu = 8\nmemory = "64g"\n'

    with pytest.raises(BadWorkload, match=r"no node has 8 cpu and 64.0 GiB at once"):
        read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "raw", "problem"),
    [
        ("w.toml", b"[[nodes", "is not TOML"),
        ("w.toml", b"\xff\xfe", "is not UTF-8"),
        ("w.toml.gz", b"plain", "is not what gzip writes"),
        ("w.yaml", b"", "is not a workload file"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, raw: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(raw)

    with pytest.raises(BadWorkload, match=f"{name}: {problem}"):
        read(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadWorkload, match=r"gone\.toml: cannot be read: No such file"):
        read(tmp_path / "gone.toml")


def test_every_file_of_the_reference_page_can_be_read(tmp_path: Path) -> None:
    found = [block for block in blocks(PAGE.read_text()) if block.language == "toml"]

    assert found
    for number, block in enumerate(found):
        assert arrived(read(written(tmp_path, block.text, f"{number}.toml")))


def test_every_field_is_on_the_reference_page() -> None:
    text = PAGE.read_text()
    known = (*FILE_FIELDS, *NODE_FIELDS, *CLUSTER_FIELDS, *LOAD_FIELDS)
    own = [field for field in known if field not in JOB_FIELDS]

    assert [field for field in own if not re.search(rf"^\| .*`{field}`.* \|", text, re.MULTILINE)] == []
    assert [field for field in JOB_FIELDS if f"`{field}`" not in text] == []
