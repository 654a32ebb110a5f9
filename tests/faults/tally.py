"""Counts of one fault test over all its repetitions."""

from dataclasses import dataclass

from tests.system.witness_file import Witness


@dataclass
class Tally:
    """Repetitions of one test, and the violations that its tasks recorded."""

    repetitions: int = 0
    overlaps: int = 0  # attempts that ran while another one of the task did
    lost: int = 0  # tasks that never ran, or ended as lost
    doubled: int = 0  # starts beyond those allowed, and writes of replaced attempts

    def record_starts(self, witness: Witness, tasks: int, repetitions: int, allowed: int = 1) -> None:
        """Add the starts of tasks that may each start `allowed` times."""
        starts = witness.starts()
        self.repetitions = repetitions
        self.lost += sum(not starts[index] for index in range(tasks))
        self.doubled += sum(max(0, times - allowed) for times in starts.values())
