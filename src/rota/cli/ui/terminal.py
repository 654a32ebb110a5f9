"""Text and output of jobs -> the same without what steers a terminal.

A job's output, its name or an error of another user may contain escape sequences that set a window's title,
answer queries as if they were typed, or hide lines. Colours are let through: programs print them on purpose,
and they end with the output.
"""

import codecs
import re

_UNFIT = "\ufffd"  # shown in the place of a character that is taken out
# Control characters but tab, line feed and carriage return; those of ISO 8859; marks that reverse direction.
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_COLOUR = r"\[[0-9;:]{0,32}m"
_STEERING = re.compile(rf"[{_CONTROLS}]|\x1b(?!{_COLOUR})")
_HALF_A_COLOUR = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
_COLOURED = re.compile(rf"\x1b{_COLOUR}")
_NO_COLOUR = "\x1b[0m"


def harmless(text: str) -> str:
    """Text for a terminal, in colour at most."""
    if text.isprintable():
        return text
    return _STEERING.sub(_UNFIT, text)


class HarmlessStream:
    """One stream of output for a terminal. Characters and colours may be cut in two between its pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # the beginning of what may be a colour
        self._is_coloured = False

    def feed(self, data: bytes) -> bytes:
        return self._passed(self._rest + self._decoder.decode(data))

    def close(self) -> bytes:
        """What was held back, and the end of its colours."""
        passed = harmless(self._rest + self._decoder.decode(b"", final=True))
        return (passed + (_NO_COLOUR if self._is_coloured else "")).encode()

    def _passed(self, text: str) -> bytes:
        half = _HALF_A_COLOUR.search(text)
        self._rest = text[half.start() :] if half else ""
        text = text[: half.start()] if half else text
        self._is_coloured |= _COLOURED.search(text) is not None
        return harmless(text).encode()
