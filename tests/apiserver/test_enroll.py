"""A machine of a provider may join only while it is desired."""

import pytest

from rota.apiserver.admission.node_actions import enroll_node
from rota.engine.state.mirror import Mirror
from rota.model.cluster import ClusterRecord, Machine
from rota.model.errors import NotAllowed
from rota.model.lifecycle import MachineState
from tests.apiserver.builders import NOW


def test_a_machine_that_is_no_longer_desired_cannot_join() -> None:
    mirror = Mirror()
    mirror.apply(ClusterRecord("build", made=2))
    mirror.apply(Machine("build-1", "build"))
    mirror.apply(Machine("build-2", "build", MachineState.LEAVING))

    for name in ("build-1", "build-3", "mine"):
        assert enroll_node(mirror, name, {"machine": name}, "build", NOW).answer.name == name
    with pytest.raises(NotAllowed, match="machine build-2 is no longer needed"):
        enroll_node(mirror, "build-2", {"machine": "build-2"}, "build", NOW)
