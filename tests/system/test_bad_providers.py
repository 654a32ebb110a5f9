"""A provider of real machines fails, lies, hangs, is slow or repeats calls: jobs end all the same."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.testing.cluster import LocalCluster
from rota.testing.processes import until
from rota.wiring.node_processes import end_nodes

pytestmark = pytest.mark.system
SECONDS = 200.0

CREATE = """#!/bin/sh
echo "$ROTA_MACHINE $({here}/list | wc -l)" >> {here}/asked
start() {{
    [ -e {here}/m/$1 ] && return
    mkdir -p {here}/m/$1
    setsid {python} -m rota.cli.main agent --data-dir {here}/m/$1 --name $ROTA_MACHINE --cpu 1 \\
        --run-as self </dev/null >{here}/m/$1/agent.log 2>&1 &
    echo $! > {here}/m/$1/pid
}}
case $ROTA_MACHINE in
    *-1) echo no quota left >&2; exit 1 ;;
    *-2) exit 0 ;;
    *-3) exec sleep 1000 ;;
    *-4) start $ROTA_MACHINE; start $ROTA_MACHINE+again ;;
    *-5) sleep 5; start $ROTA_MACHINE ;;
    *) start $ROTA_MACHINE ;;
esac
"""
LIST = """#!/bin/sh
for pid in {here}/m/*/pid; do
    [ -e $pid ] && basename $(dirname $pid) | sed s/+again//
done
exit 0
"""
REMOVE = """#!/bin/sh
for one in $ROTA_MACHINE+again $ROTA_MACHINE; do
    [ -e {here}/m/$one/pid ] || continue
    kill -INT -$(cat {here}/m/$one/pid) 2>/dev/null
    rm -r {here}/m/$one
    exit 0
done
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=0) as made:
        yield made


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Path]:
    """Of a machine that was made twice it removes one, and says that all is done."""
    here = tmp_path / "cloud"
    here.mkdir()
    for name, text in (("create", CREATE), ("list", LIST), ("remove", REMOVE)):
        script = here / name
        script.write_text(text.format(here=here, python=sys.executable))
        script.chmod(0o755)
    yield here
    end_nodes(list((here / "m").glob("*")))


def shown(cluster: LocalCluster) -> Any:
    return cluster.call("GET", "/v1/clusters/cloud").body


def test_a_faulty_provider_does_not_keep_jobs_from_ending_in_time(cluster: LocalCluster, cloud: Path) -> None:
    settings = [f"--setting={verb}={cloud / verb}" for verb in ("create", "list", "remove")]
    sizes = ("--node", "cpu=1", "--max", "2", "--join", "30s", "--idle", "1s", "--pause", "1s")
    made = cluster.rota("cluster", "create", "cloud", "--provider", "command", *sizes, *settings)
    job = cluster.submit("true", cluster="cloud", count=6)
    until(lambda: shown(cluster)["failures"] > 0, "it has failed", SECONDS)
    text = cluster.rota("why", job).out
    until(lambda: cluster.count(job, "succeeded") == 6, "all have run", SECONDS)
    until(lambda: shown(cluster)["machines"] == [], "all machines are gone", SECONDS)
    ledger = cluster.rota("cluster", "why", "cloud", "--limit", "1000").out

    assert made.code == 0, made.err
    assert " was given up: " in text
    assert "its create command ended with 1" in ledger
    assert "the provider of cluster cloud says: no quota left" in ledger
    assert "machine cloud-2 is given up: " in ledger
    assert "machine cloud-3 is given up: " in ledger
    assert "machine cloud-4 is given up: its provider has made more than one of that name" in ledger
    assert "its provider says that it has, and still lists it" in ledger
    asked = [line.split() for line in (cloud / "asked").read_text().splitlines()]
    assert len({name for name, _ in asked}) == len(asked) < 12
    assert all(int(count) < 2 for _, count in asked)
    assert "machine cloud-5 has joined as node cloud-5 after " in ledger
    assert list((cloud / "m").glob("*/pid")) == []


@pytest.mark.parametrize(
    ("role", "namespace", "is_shown"),
    [
        ("viewer", "*", False),
        ("submitter", "*", False),
        ("admin", "team", False),
        ("operator", "*", True),
        ("admin", "*", True),
    ],
)
def test_output_of_a_provider_is_shown_to_operators_only(
    leaking: LocalCluster, role: str, namespace: str, is_shown: bool
) -> None:
    """Others do not see its output in the cluster, its events, or a job that waits for it."""
    spaces = () if namespace == "*" else ("--namespace", namespace)
    name = f"{role}-{namespace.replace('*', 'all')}"
    token = leaking.rota("token", "make", name, "--role", role, *spaces).out.strip()
    asked = [
        ("cluster", "show", "cloud"),
        ("cluster", "show", "cloud", "-o", "json"),
        ("cluster", "ls", "-o", "json"),
        ("cluster", "why", "cloud", "--limit", "1000"),
        ("why", "1", "--namespace", "team"),
        ("show", "1", "--namespace", "team"),
        ("event", "ls", "--limit", "1000"),
    ]
    text = "".join(leaking.rota(*arguments, ROTA_TOKEN=token).out for arguments in asked)

    assert " command ended with 1" in text
    assert ("s3cr3t" in text) is is_shown


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster whose provider prints a key, and a job that waits for it."""
    with LocalCluster(tmp_path_factory.mktemp("leaking"), nodes=0) as cluster:
        failing = "sh -c 'echo key=s3cr3t >&2; exit 1'"
        settings = [f"--setting={verb}={failing}" for verb in ("create", "list", "remove")]
        sizes = ("--node", "cpu=1", "--max", "1", "--pause", "1s")
        cluster.rota("cluster", "create", "cloud", "--provider", "command", *sizes, *settings)
        cluster.submit("true", cluster="cloud", namespace="team")
        until(lambda: "s3cr3t" in (shown(cluster)["reason"] or ""), "it has failed", SECONDS)
        yield cluster
