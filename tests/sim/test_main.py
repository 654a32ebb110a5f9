"""python -m rota.sim: a seed, many seeds or a workload; wrong arguments are named."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rota.sim.__main__ import main

WORKLOAD = """
[[nodes]]
count = 2
cpu = 4
memory = "8g"

[[load]]
name = "ci"
per_hour = 600
run_seconds = 5
"""
LOG = Path(__file__).parent / "data" / "small.swf"
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "ci.toml"
    path.write_text(WORKLOAD)
    return path


def test_a_seed_without_violations_prints_a_summary(capsys: Captured) -> None:
    code = main(["--seed", "0", "--jobs-kept", "0", "--faults-kept", "0,1"])

    printed = capsys.readouterr().out
    assert code == 0
    assert re.fullmatch(
        r"seed 0 holds: .* minutes in .* steps, .* attempts, 2 faults, trace [0-9a-f]{32}\n", printed
    )


def test_the_trace_is_printed_on_request(capsys: Captured) -> None:
    main(["--seed", "0", "--jobs-kept", "0", "--faults-kept", "0", "--trace"])

    *trace, verdict = capsys.readouterr().out.splitlines()
    assert verdict.startswith("seed 0 holds")
    assert all(re.match(r" *\d+\.\d{3}  \S.*: ", line) for line in trace)
    assert any("leads epoch 1" in line for line in trace)
    assert any("fault: " in line for line in trace)


@pytest.mark.slow
def test_many_seeds_give_a_table(capsys: Captured) -> None:
    code = main(["--seeds", "0-3", "--processes", "2"])

    printed = capsys.readouterr().out
    assert code == 0
    assert printed.startswith("met in 3 seeds")
    assert "never met: " in printed
    assert re.search(
        r"^3 seeds, .* hours of cluster time in .* s: every invariant held$", printed, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--seeds", "200"], "'200' is not a range of seeds: write 0-200"),
        (["--seeds", "a-b"], "'a-b' is not a range of seeds"),
        (["--faults-kept", "1,x"], "'1,x' is not a list of numbers: write 0,3,4"),
        (["--seed", "x"], "--seed"),
        (["--fault"], "--fault"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], problem: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_missing_workload_is_named(tmp_path: Path, capsys: Captured) -> None:
    missing = tmp_path / "missing.toml"
    code = main(["--workload", str(missing)])

    assert code == 2
    assert capsys.readouterr().err.startswith(f"rota.sim: {missing}: ")


def test_a_workload_is_replayed_and_plotted(workload: Path, tmp_path: Path, capsys: Captured) -> None:
    picture = tmp_path / "ci.svg"
    code = main(["--workload", str(workload), "--hours", "0.1", "--nodes", "3", "--plot", str(picture)])

    printed = capsys.readouterr().out
    assert code == 0
    assert "3 nodes, seed 0" in printed
    assert re.search(r"^utilisation", printed, re.MULTILINE)
    assert printed.endswith(f"plotted in {picture}\n")
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.parametrize(("options", "order"), [([], "Rota"), (["--first-come"], "first come")])
def test_the_figures_of_a_log_are_printed_beside_the_replay(
    options: list[str], order: str, capsys: Captured
) -> None:
    code = main(["--workload", str(LOG), "--hours", "0.01", *options])

    printed = capsys.readouterr().out
    assert code == 0
    assert re.search(rf"^ +{order} +the log$", printed, re.MULTILINE)
    assert re.search(r"^tasks +4 +3$", printed, re.MULTILINE), (
        "of the first 36 seconds, each by its own times"
    )


def test_a_workload_under_faults_keeps_every_invariant_and_is_deterministic(
    workload: Path, capsys: Captured
) -> None:
    digests = []
    for _ in range(2):
        code = main(
            ["--workload", str(workload), "--hours", "0.1", "--faults", "--servers", "3", "--seed", "1"]
        )
        digests += re.findall(r"trace ([0-9a-f]{32})", capsys.readouterr().out)
        assert code == 0

    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_a_plot_that_cannot_be_written_is_named(workload: Path, tmp_path: Path, capsys: Captured) -> None:
    picture = tmp_path / "nowhere" / "ci.svg"
    code = main(["--workload", str(workload), "--hours", "0.01", "--plot", str(picture)])

    assert code == 2
    assert str(picture) in capsys.readouterr().err
