"""What the identity tests share: a CA, made in the real present."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rota.identity.authority import Authority


@pytest.fixture
def now() -> datetime:
    """TLS reads the real clock, so certificates have to be made in the real present."""
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def authority(tmp_path: Path, now: datetime) -> Authority:
    return Authority.open(tmp_path / "ca", now)
