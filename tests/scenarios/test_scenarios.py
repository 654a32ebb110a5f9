"""Every story here happens as it is told. ROTA_REWRITE_SCENARIOS=1 tells them anew: read the diff."""

import os
from pathlib import Path

import pytest

from rota.testing.scenario import replay

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_the_story_happens_as_it_is_told(story: Path) -> None:
    told = story.read_text()
    happened = replay(told)
    if os.environ.get("ROTA_REWRITE_SCENARIOS"):
        story.write_text(happened)
        return

    assert happened.splitlines() == told.splitlines()


def test_there_are_stories() -> None:
    assert len(STORIES) >= 12
