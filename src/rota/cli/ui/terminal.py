"""Remove terminal control sequences from text and output of jobs.

The output or name of a job, or an error of another user, may contain escape sequences that set the window
title, answer queries as if typed, or hide lines. Colours are kept: programs print them on purpose, and
they end with the output.
"""

import codecs
import re

_REPLACEMENT = "\ufffd"  # shown instead of a removed character
# Control characters except tab, line feed and carriage return; those of ISO 8859; bidirectional marks.
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_COLOUR = r"\[[0-9;:]{0,32}m"
_CONTROL = re.compile(rf"[{_CONTROLS}]|\x1b(?!{_COLOUR})")
_PARTIAL_COLOUR = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
_COLOURED = re.compile(rf"\x1b{_COLOUR}")
_NO_COLOUR = "\x1b[0m"


def harmless(text: str) -> str:
    """Text for a terminal; colours are its only control sequences."""
    if text.isprintable():
        return text
    return _CONTROL.sub(_REPLACEMENT, text)


class HarmlessStream:
    """One stream of output for a terminal; characters and colours may be split between chunks."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""  # the start of a possible colour sequence
        self._is_coloured = False

    def feed(self, data: bytes) -> bytes:
        return self._passed(self._partial + self._decoder.decode(data))

    def close(self) -> bytes:
        """The text that was held back, and a colour reset if needed."""
        passed = harmless(self._partial + self._decoder.decode(b"", final=True))
        return (passed + (_NO_COLOUR if self._is_coloured else "")).encode()

    def _passed(self, text: str) -> bytes:
        half = _PARTIAL_COLOUR.search(text)
        self._partial = text[half.start() :] if half else ""
        text = text[: half.start()] if half else text
        self._is_coloured |= _COLOURED.search(text) is not None
        return harmless(text).encode()
