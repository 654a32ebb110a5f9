"""An elastic cluster in virtual time: the production provisioner, a provider, machines that come and go."""

from pathlib import Path
from random import Random

import pytest

from rota.model.errors import Rejected
from rota.sim.__main__ import main
from rota.sim.replay import Replayed, ReplaySettings, replay
from rota.sim.workloads.model import Workload
from rota.sim.workloads.sizes import SizedRun, busy_share, node_hours, sizes
from rota.sim.workloads.toml_file import parse, read

FILE = """
[cluster]
min = 1
max = 4
cpu = 2
memory = "4g"
labels = { zone = "a" }
make_seconds = 20
idle_seconds = 30

[[load]]
kind = "burst"
per_hour = 1
jobs_max = 2
jobs = 2
count = 6
run_seconds = 60
cpu = 1
where = ["zone == a"]
"""
SWF = """; MaxProcs: 8
1   0  0  60  4 -1 -1 4  90 -1 1 1 1 -1 1 -1 -1 -1
2  10 50  30  8 -1 -1 8  60 -1 1 1 1 -1 1 -1 -1 -1
3  20 10  30  1 -1 -1 1  60 -1 1 1 1 -1 1 -1 -1 -1
"""


def small(tmp_path: Path, text: str = FILE) -> Workload:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return read(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return replay(small(tmp_path_factory.mktemp("work")), ReplaySettings(seed=3, hours=1))


def test_a_cluster_grows_to_its_limit_and_shrinks_to_its_minimum(done: Replayed) -> None:
    (level,) = sizes({"one": SizedRun(done.rows, done.spans)}, 2000).values()

    assert len(done.rows) == 12
    assert max(level.nodes) == pytest.approx(4, abs=0.2)
    assert len(done.spans) == 4
    assert sum(end == done.virtual_ms for _, end in done.spans) == 1
    assert all(row.started_ms - row.submitted_ms > 15_000 for row in done.rows if row.submitted_ms == 0)


def test_node_hours_are_those_of_existing_machines(done: Replayed) -> None:
    run = SizedRun(done.rows, done.spans)

    assert node_hours(done.spans) < 4 * done.virtual_ms / 3_600_000
    assert 0 < busy_share(run, 2000) < 1
    assert node_hours([(0, 1_800_000), (0, 3_600_000)]) == 1.5


def test_the_same_seed_gives_the_same_trace(done: Replayed, tmp_path: Path) -> None:
    assert replay(small(tmp_path), ReplaySettings(seed=3, hours=1)).digest == done.digest


def test_a_log_is_replayed_on_elastic_and_on_fixed_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, plot = tmp_path / "log.swf", tmp_path / "log.svg"
    log.write_text(SWF)
    flags = ["--node-cpus", "1", "--elastic", "0-8", "--make", "5", "--idle", "10", "--plot", str(plot)]
    code = main(["--workload", str(log), *flags])
    printed = capsys.readouterr().out

    assert code == 0
    assert "log: 0 to 8 nodes" in printed
    assert [line.split()[-2:] for line in printed.splitlines() if line.startswith("tasks  ")] == [
        ["13", "13"]
    ]
    elastic, fixed = next(line for line in printed.splitlines() if line.startswith("node hours")).split()[2:]
    assert float(elastic) < float(fixed)
    assert all(text in plot.read_text() for text in ("asked for", "elastic", "fixed", "tasks waiting"))


def test_a_job_of_a_log_becomes_a_gang_of_whole_nodes(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    split = read(path).split(3)

    assert split.size == 2
    assert [arrival.spec.get("count") for arrival in split.recorded] == [2, 3, None]
    assert [arrival.spec["cpu"] for arrival in split.recorded] == [3, 3, 1]
    with pytest.raises(Rejected, match="has 8 cores"):
        read(path).split(9)


def test_the_number_of_nodes_sets_the_maximum_of_an_elastic_cluster(tmp_path: Path) -> None:
    workload = small(tmp_path).with_nodes(9)

    assert workload.cluster is not None
    assert (workload.size, workload.cluster.most) == (9, 9)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("max = 0\ncpu = 1\nmemory = 1", "cluster.max"),
        ("cpu = 1\nmemory = 1", "cluster.max: is missing"),
        ("max = 2\nmin = 3\ncpu = 1\nmemory = 1", "cluster.min"),
        ("max = 2\nmemory = 1", "cluster.cpu: is missing"),
        ("max = 2\ncpu = 1\nmemory = 1\nidle = 3", "idle_seconds"),
        ("max = 2\ncpu = 1\nmemory = 1\n[[nodes]]\ncpu = 1\nmemory = 1", "leave out"),
    ],
)
def test_an_invalid_cluster_table_is_named(tmp_path: Path, table: str, problem: str) -> None:
    with pytest.raises(Rejected) as refused:
        small(tmp_path, f"[cluster]\n{table}\n[[load]]\nper_hour = 1\nrun_seconds = 1\n")

    assert problem in str(refused.value) + (refused.value.hint or "")


def test_an_elastic_cluster_needs_nodes_of_one_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.toml"
    kinds = "".join(f'[[nodes]]\ncpu = {cpu}\nmemory = "1g"\n' for cpu in (1, 2))
    path.write_text(f"{kinds}[[load]]\nper_hour = 1\nrun_seconds = 1\n")

    assert main(["--workload", str(path), "--elastic", "0-3"]) == 2
    assert "2 kinds of nodes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--elastic", "3"], ["--elastic", "4-2"], ["--make", "x"], ["--idle", "-1"]]
)
def test_wrong_sizes_and_times_are_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workload", "x.toml", *flags])


def test_jobs_arrive_in_their_hours_also_across_midnight() -> None:
    load = {"kind": "steady", "per_hour": 2, "run_seconds": 1}
    loads = [{**load, "name": "day", "hours": [8, 18]}, {**load, "name": "night", "hours": [22, 6]}]
    work = parse({"nodes": [{"cpu": 1, "memory": "1g"}], "load": loads}, "x")
    hours = {
        name: sorted({arrival.at_ms // 3_600_000 % 24 for arrival in load.arrivals(_rng(), 48 * 3_600_000)})
        for name, load in zip(("day", "night"), work.loads, strict=True)
    }

    assert hours == {"day": list(range(8, 18)), "night": [*range(6), 22, 23]}
    for wrong in (8, [8], [8, 8], [8, 25], ["a", 3]):
        with pytest.raises(Rejected, match="hours"):
            parse({"nodes": [{"cpu": 1, "memory": 1}], "load": [{**load, "hours": wrong}]}, "x")


def _rng() -> Random:
    return Random(1)
