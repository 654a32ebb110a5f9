"""The name of a signal -> its number, as on Linux; or an error that says which there are."""

from difflib import get_close_matches

from rota.apiserver.spec.fields import printable
from rota.model.errors import BadField

SIGKILL = 9
SIGNAL_NUMBERS = {
    "HUP": 1,
    "INT": 2,
    "QUIT": 3,
    "ILL": 4,
    "TRAP": 5,
    "ABRT": 6,
    "BUS": 7,
    "FPE": 8,
    "KILL": SIGKILL,
    "USR1": 10,
    "SEGV": 11,
    "USR2": 12,
    "PIPE": 13,
    "ALRM": 14,
    "TERM": 15,
    "CHLD": 17,
    "CONT": 18,
    "STOP": 19,
    "TSTP": 20,
    "TTIN": 21,
    "TTOU": 22,
    "URG": 23,
    "XCPU": 24,
    "XFSZ": 25,
    "VTALRM": 26,
    "PROF": 27,
    "WINCH": 28,
    "IO": 29,
    "PWR": 30,
    "SYS": 31,
}
SIGNAL_NAMES = {number: name for name, number in SIGNAL_NUMBERS.items()}


def parse_signal(field: str, value: object) -> int:
    """`USR1`, `SIGUSR1` or 10."""
    name = str(value).upper().removeprefix("SIG")
    if name in SIGNAL_NUMBERS:
        return SIGNAL_NUMBERS[name]
    if name.isascii() and name.isdecimal() and len(name) < 3 and int(name) in SIGNAL_NAMES:
        return int(name)
    near = get_close_matches(name[:20], SIGNAL_NUMBERS, 1)
    hint = f"did you mean {near[0]}?" if near else f"write one of: {', '.join(SIGNAL_NUMBERS)}"
    raise BadField(field, f"'{printable(str(value))[:20]}' is not a signal", hint)
