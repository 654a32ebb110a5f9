"""Steps: commands that a task runs in order, and the state of each as reported by its node."""

import msgspec

from rota.model.lifecycle import ATTEMPT_FIRST_END, AttemptState


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a spec."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str] = {}
    timeout_seconds: float | None = None


class StepMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that has started; steps after the last mark have not."""

    started_at_ms: int
    ended_at_ms: int = 0  # 0: not yet
    exit_code: int = -1  # -1: none
    signal: int = 0
    out_offset: int = 0  # where its output starts in the output of the attempt
    err_offset: int = 0


def states(steps: int, marks: tuple[StepMark, ...], attempt: AttemptState) -> list[str]:
    """The state of each step: a step starts only if the one before it succeeded."""
    ended = attempt >= ATTEMPT_FIRST_END
    done = ["succeeded"] * (len(marks) - 1)
    last = [_state_of_last(marks[-1], attempt)] if marks else []
    not_started = steps - len(marks)
    return [*done, *last, *["skipped" if ended else "waiting"] * not_started]


def _state_of_last(mark: StepMark, attempt: AttemptState) -> str:
    if attempt < ATTEMPT_FIRST_END:
        if not mark.ended_at_ms:
            return "running"
        return "failed" if mark.exit_code or mark.signal else "succeeded"
    return attempt.name.lower()


def describe_step(name: str, mark: StepMark) -> str:
    """`build ended with 0`"""
    if not mark.ended_at_ms:
        return f"{name} began"
    if mark.signal:
        return f"{name} was killed by signal {mark.signal}"
    return f"{name} ended with {mark.exit_code}" if mark.exit_code >= 0 else f"{name} did not end by itself"
