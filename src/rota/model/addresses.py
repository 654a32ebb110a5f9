"""Which addresses never leave this machine: only there plain text is allowed."""


def is_loopback(host: str) -> bool:
    """Exactly: a name or number that merely begins like one may be anybody's."""
    numbers = host.split(".")
    return host in ("localhost", "::1") or (
        len(numbers) == 4 and numbers[0] == "127" and all(number.isdecimal() for number in numbers)
    )


def is_port(text: str) -> bool:
    """Whether it is a port in decimal; 0 stands for any free one."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535


def host_and_port(address: str) -> tuple[str, int]:
    """`host:port` -> both, as sockets take them: an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
