"""What one fault test has seen in all its repetitions."""

from dataclasses import dataclass

from tests.system.witness_file import Witness


@dataclass
class Tally:
    """Repetitions of one test, and what its work's own witness says of all of them."""

    repetitions: int = 0
    overlaps: int = 0  # attempts of a task that ran while another did
    lost: int = 0  # tasks that never ran, or whose fate nobody knows
    doubled: int = 0  # starts beyond the one that was promised, and writes of an attempt that was replaced

    def note_starts(self, witness: Witness, tasks: int, repetitions: int, allowed: int = 1) -> None:
        """Of work that each task is to begin so often at most."""
        starts = witness.starts()
        self.repetitions = repetitions
        self.lost += sum(not starts[index] for index in range(tasks))
        self.doubled += sum(max(0, times - allowed) for times in starts.values())
