"""What the identity tests share: the real present, and a CA that is a year old."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rota.identity.authority import CertificateAuthority


@pytest.fixture
def now() -> datetime:
    """TLS reads the real clock, so certificates have to be made in the real present."""
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def authority(tmp_path: Path, now: datetime) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path / "ca", now - timedelta(days=365))
