"""ReportInterval: between which bounds nodes say how busy they are, where a controller has set them."""

import msgspec

from rota.model.ids import Key


class ReportInterval(msgspec.Struct, frozen=True):
    """Written by apiserver. Both 0: as the server's configuration says."""

    least_ms: int = 0
    most_ms: int = 0

    @property
    def key(self) -> Key:
        return Key("pace/reports")
