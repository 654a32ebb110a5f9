"""Clusters of real processes: one for each test that harms it, one for each file whose tests do not."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.client.cluster import Cluster, connect
from rota.testing.cluster import LocalCluster
from tests.contracts.processes import ROOT
from tests.system.dev import Dev
from tests.system.witness_file import Gate, Witness


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes of four cores."""
    with LocalCluster(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One node of four cores, for tests that leave it as they found it."""
    with LocalCluster(tmp_path_factory.mktemp("shared"), nodes=1) as running:
        yield running


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes of four cores, for tests that leave them as they found them."""
    with LocalCluster(tmp_path_factory.mktemp("three")) as running:
        yield running


@pytest.fixture(scope="module")
def client(three: LocalCluster) -> Iterator[Cluster]:
    with connect(f"http://{three.http}", token=three.token) as opened:
        yield opened


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """A dev cluster that is not started yet."""
    with contextlib.closing(Dev(tmp_path)) as made:
        yield made


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "witness")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker contract's messages and services, made from its proto alone."""
    made = tmp_path_factory.mktemp("stubs")
    proto = ROOT / "proto" / "jobscheduler"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"--python_out={made}"]
    subprocess.run([*command, f"--grpc_python_out={made}", "jobscheduler.proto"], check=True)
    return made
