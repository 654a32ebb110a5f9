"""State tables: every pair has a transition or is refused, ends are final, every state can be reached."""

from enum import Enum
from itertools import product
from typing import Any, NamedTuple

import pytest

from rota.model.errors import IllegalTransition
from rota.model.lifecycle import (
    ATTEMPT,
    ATTEMPT_FIRST_END,
    CLUSTER,
    JOB,
    JOB_ENDS,
    MACHINE,
    NODE,
    NOT_STARTED,
    TASK,
    TASK_ENDS,
    AttemptEvent,
    AttemptState,
    ClusterEvent,
    ClusterState,
    JobEvent,
    JobState,
    MachineEvent,
    MachineState,
    NodeEvent,
    NodeState,
    Table,
    TaskEvent,
    TaskState,
    step,
)


class Machine(NamedTuple):
    table: Table[Any, Any]
    states: type[Enum]
    events: type[Enum]
    first: Enum
    ends: frozenset[Any]


MACHINES = {
    "job": Machine(JOB, JobState, JobEvent, JobState.SUBMITTED, JOB_ENDS),
    "task": Machine(
        TASK,
        TaskState,
        TaskEvent,
        TaskState.WANTED,
        TASK_ENDS,
    ),
    "attempt": Machine(
        ATTEMPT,
        AttemptState,
        AttemptEvent,
        AttemptState.OFFERED,
        frozenset(state for state in AttemptState if state >= ATTEMPT_FIRST_END),
    ),
    "node": Machine(NODE, NodeState, NodeEvent, NodeState.READY, frozenset()),
    "cluster": Machine(
        CLUSTER, ClusterState, ClusterEvent, ClusterState.REQUESTED, frozenset({ClusterState.ENDED})
    ),
    "machine": Machine(
        MACHINE, MachineState, MachineEvent, MachineState.WANTED, frozenset({MachineState.LEAVING})
    ),
}
EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
PAIRS = [
    pytest.param(machine, state, event, id=f"{name}: {state.name} {event.name}")
    for name, machine in MACHINES.items()
    for state, event in product(machine.states, machine.events)
]


@pytest.mark.parametrize(("machine", "state", "event"), PAIRS)
def test_every_state_steps_at_an_event_or_refuses_it(machine: Machine, state: Enum, event: Enum) -> None:
    if (state, event) in machine.table:
        assert step(machine.table, state, event) in machine.states
    else:
        with pytest.raises(IllegalTransition, match=event.name):
            step(machine.table, state, event)


@EVERY_MACHINE
def test_a_table_contains_only_its_own_states_and_events(machine: Machine) -> None:
    for (state, event), then in machine.table.items():
        assert type(state) is type(then) is machine.states
        assert type(event) is machine.events


@EVERY_MACHINE
def test_only_end_states_have_no_transitions(machine: Machine) -> None:
    with_a_way_out = {state for (state, _), then in machine.table.items() if then != state}

    assert with_a_way_out == set(machine.states) - machine.ends
    assert not {state for state, _ in machine.table} & machine.ends


@EVERY_MACHINE
def test_every_state_can_be_reached(machine: Machine) -> None:
    assert reachable(machine, machine.first) == set(machine.states)


@EVERY_MACHINE
def test_from_every_state_an_end_can_be_reached(machine: Machine) -> None:
    goals = machine.ends or {machine.first}

    for state in machine.states:
        assert reachable(machine, state) & goals


@EVERY_MACHINE
def test_every_event_is_used(machine: Machine) -> None:
    assert {event for _, event in machine.table} == set(machine.events)


def test_every_live_attempt_state_accepts_the_report_of_an_end() -> None:
    """Reports of the states in between may have been lost."""
    ends = (
        AttemptEvent.EXITED_ZERO,
        AttemptEvent.EXITED_NONZERO,
        AttemptEvent.STOPPED,
        AttemptEvent.TIMED_OUT,
    )
    losses = (AttemptEvent.RESULT_LOST, AttemptEvent.NODE_LOST)

    for state in AttemptState:
        if state < ATTEMPT_FIRST_END:
            for event in (*ends, *losses):
                assert step(ATTEMPT, state, event) >= ATTEMPT_FIRST_END


def test_an_attempt_that_ran_never_counts_as_not_started() -> None:
    started = (AttemptState.RUNNING, AttemptState.STOPPING)

    for (state, event), then in ATTEMPT.items():
        assert not (state in started and then in NOT_STARTED), (state, event)


def test_a_hello_makes_a_node_ready_from_every_state() -> None:
    assert {step(NODE, state, NodeEvent.HELLO) for state in NodeState} == {NodeState.READY}


def test_a_canceled_task_is_never_desired_again() -> None:
    assert all(then != TaskState.WANTED for (state, _), then in TASK.items() if state == TaskState.UNWANTED)


def test_stored_numbers_never_change() -> None:
    tasks = "WANTED UNWANTED SUCCEEDED FAILED CANCELED TIMED_OUT LOST HELD"
    attempts = (
        "OFFERED QUEUED ACCEPTED RUNNING STOPPING SUCCEEDED FAILED STOPPED TIMED_OUT LOST REFUSED WITHDRAWN"
    )

    assert [(state.name, state.value) for state in TaskState] == [(n, i) for i, n in enumerate(tasks.split())]
    assert [(state.name, state.value) for state in AttemptState] == [
        (n, i) for i, n in enumerate(attempts.split())
    ]


def reachable(machine: Machine, start: Enum) -> set[Enum]:
    seen: set[Enum] = {start}
    more = [start]
    while more:
        here = more.pop()
        for (state, _), then in machine.table.items():
            if state is here and then not in seen:
                seen.add(then)
                more.append(then)
    return seen
