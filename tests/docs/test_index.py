"""README and the indexes of docs link to every page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#\s]+)")


def test_documentation_index_links_every_page() -> None:
    pages = {path for path in DOCS.rglob("*.md") if path.parent != DOCS / "decisions"}

    index = DOCS / "README.md"
    assert pages - linked(index) == {index}


def test_index_of_decisions_links_every_decision() -> None:
    decisions = set((DOCS / "decisions").glob("*.md"))

    index = DOCS / "decisions" / "README.md"
    assert decisions - linked(index) == {index}
    assert index in linked(DOCS / "README.md")


def test_readme_links_the_documentation_and_every_page_beside_it() -> None:
    pages = {*ROOT.glob("*.md"), DOCS / "README.md"}

    readme = ROOT / "README.md"
    assert pages - linked(readme) == {readme}


def linked(page: Path) -> set[Path]:
    targets = (target for target in LINK.findall(page.read_text()) if not target.startswith("http"))
    return {(page.parent / target).resolve() for target in targets}
