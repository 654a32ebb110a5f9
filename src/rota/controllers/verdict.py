"""Verdict: what becomes of a task whose attempt has ended."""

from typing import NamedTuple

from rota.model.lifecycle import TaskEvent


class Verdict(NamedTuple):
    event: TaskEvent
    spends_a_retry: bool = False
    pause_ms: int = 0
