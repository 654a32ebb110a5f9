"""The simulator finds every planted bug, and no violation in the source as it is."""

from pathlib import Path

import pytest

from tests.sim.planting import SEEDS, SOURCE, Found, OutOfDate, PlantedBug, bugs, find, plant, read, run

BUGS = bugs()
LEAST = 20  # fewer would show little
BY_DAY = BUGS[::5]  # in `make test`; all of them take a minute and a half of one core
PRODUCT = (
    *("agent", "apiserver", "clusters", "controllers", "engine", "keeper"),
    *("model", "rules", "scheduler", "watcher"),
)

pytestmark = pytest.mark.timeout(300)


@pytest.mark.system
@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, id=bug.name, marks=() if bug in BY_DAY else pytest.mark.nightly) for bug in BUGS],
)
def test_a_planted_bug_is_found_by_its_seed(bug: PlantedBug) -> None:
    found = find(bug, [bug.seed])

    assert found is not None, f"{bug.name}: {bug.why} Seed {bug.seed} no longer finds it: search for another"


@pytest.mark.system
@pytest.mark.parametrize("drawn", sorted({bug.drawn for bug in BUGS}))
def test_without_a_planted_bug_these_seeds_violate_nothing(drawn: str) -> None:
    assert run(SOURCE, sorted({bug.seed for bug in BUGS if bug.drawn == drawn}), drawn=drawn) is None


def test_enough_bugs_are_planted_all_in_the_product_and_within_the_searched_seeds() -> None:
    assert len(BUGS) >= LEAST
    assert all(bug.file.split("/")[2] in PRODUCT for bug in BUGS)
    assert all(0 <= bug.seed < SEEDS for bug in BUGS)
    assert all(bug.why.endswith(".") and bug.old != bug.new for bug in BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_text_that_a_planted_bug_replaces_occurs_once_in_the_source(
    bug: PlantedBug, tmp_path: Path
) -> None:
    plant(bug, tmp_path)

    planted = (tmp_path / Path(bug.file).relative_to("src")).read_text(encoding="utf-8")
    assert bug.new in planted
    compile(planted, bug.file, "exec")


def test_an_outdated_planted_bug_is_reported(tmp_path: Path) -> None:
    bug = BUGS[0]._replace(old="text that occurs nowhere")

    with pytest.raises(OutOfDate, match=rf"0 times.*planted/{bug.name}\.toml up to date"):
        plant(bug, tmp_path)


def test_a_planted_bug_changes_one_file_and_leaves_the_source_alone(tmp_path: Path) -> None:
    bug = BUGS[0]
    before = (SOURCE.parent / bug.file).read_bytes()
    plant(bug, tmp_path)

    assert (SOURCE.parent / bug.file).read_bytes() == before
    own = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert own == [tmp_path / Path(bug.file).relative_to("src")]


def test_a_field_that_is_misspelt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('file = "src/rota/model/node_table.py"\nbecause = "x"\n')

    with pytest.raises(OutOfDate, match="because"):
        read(path)


def test_the_first_seed_with_a_violation_is_returned(tmp_path: Path) -> None:
    sim = tmp_path / "rota" / "sim"
    sim.mkdir(parents=True)
    (tmp_path / "rota" / "__init__.py").touch()
    (sim / "scenario.py").write_text(
        "class run:\n"
        "    def __init__(self, seed, keep_trace):\n"
        "        self.broken = 'it broke' if seed > 2 else None\n"
        "scenario = int\n"
    )

    assert run(tmp_path, [1, 2, 3, 4]) == Found(3, "it broke")
    assert run(tmp_path, [1, 2]) is None


def test_a_directory_without_a_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="another source was run"):
        run(tmp_path, [0])
