"""Keys of the store in etcd, and operations and comparisons of transactions on them."""

from rota.store.etcd.generated import etcd_pb2 as pb


class Layout:
    """All keys are below one prefix.

    leader            record of the leading server, bound to its lease; its creation revision is the epoch
    epoch             written with `leader` and never deleted: its last change is the last epoch
    base              added to both, so that epochs continue above those that nodes have seen
    revision          of the last commit, as a number in text: every commit compares it
    head              format, cluster time and mark of the last commit
    pending           a large commit that is durable and still in `staged/`
    staged/MARK/N     parts of large commits; without `pending` they have no effect
    pieces/MARK/I/N   parts of values too large for one key
    records/KEY       0 and the value, or 1 and MARK/I
    events/REVISION/WALL_MS/N    the event row of a commit, in parts
    shared/NAME       values that servers share beside records
    servers/ADDRESS   servers that may lead
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.leader = self.prefix + b"leader"
        self.epoch = self.prefix + b"epoch"
        self.base = self.prefix + b"base"
        self.revision = self.prefix + b"revision"
        self.head = self.prefix + b"head"
        self.pending = self.prefix + b"pending"
        self.staged = self.prefix + b"staged/"
        self.pieces = self.prefix + b"pieces/"
        self.records = self.prefix + b"records/"
        self.events = self.prefix + b"events/"
        self.shared = self.prefix + b"shared/"
        self.servers = self.prefix + b"servers/"

    def record(self, key: str) -> bytes:
        return self.records + key.encode()

    def staged_part(self, mark: str, number: int) -> bytes:
        return self.staged_prefix(mark) + b"%06d" % number

    def staged_prefix(self, mark: str) -> bytes:
        return self.staged + f"{mark}/".encode()

    def staged_epoch(self, place: bytes) -> int:
        """The epoch in the mark of a part or a piece."""
        mark = place[len(self.prefix) :].split(b"/")[1]
        return int(mark.partition(b".")[0])

    def piece(self, name: str, number: int) -> bytes:
        return self.pieces_prefix(name) + b"%06d" % number

    def pieces_prefix(self, name: str) -> bytes:
        return self.pieces + f"{name}/".encode()

    def event_part(self, revision: int, wall_ms: int, number: int) -> bytes:
        return self.events + f"{revision:020d}/{wall_ms:020d}/{number:06d}".encode()

    def events_from(self, revision: int) -> bytes:
        return self.events + f"{revision:020d}/".encode()


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def delete_prefix(prefix: bytes) -> pb.RequestOp:
    return delete_between(prefix, prefix_end(prefix))


def delete_between(first: bytes, end: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=first, range_end=end))


def get(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def created_at(key: bytes, revision: int) -> pb.Compare:
    return pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=revision)


def absent(key: bytes) -> pb.Compare:
    return created_at(key, 0)


def equals(key: bytes, value: bytes) -> pb.Compare:
    return pb.Compare(target=pb.Compare.VALUE, key=key, value=value)
