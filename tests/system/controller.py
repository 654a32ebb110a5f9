"""An outside controller, made from controller.proto alone: its messages, its stub and a token."""

from typing import Any, Self

import grpc

from rota.testing.cluster import LocalCluster
from rota.wire.generated import controller_pb2_grpc

SECONDS = 120


class Outside:
    """Each call of the service by its name, with the admin's token unless another is given."""

    def __init__(self, cluster: LocalCluster, token: str | None = None) -> None:
        self._channel = grpc.insecure_channel(cluster.grpc, [("grpc.max_reconnect_backoff_ms", 200)])
        self._stub: Any = controller_pb2_grpc.ControllerStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._metadata = (("authorization", f"Bearer {token or cluster.token}"),)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: str, request: Any) -> Any:
        """The response of a call, or its stream of responses."""
        return getattr(self._stub, method)(
            request, metadata=self._metadata, timeout=SECONDS, wait_for_ready=True
        )

    def refusal(self, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
        """The status with which a call is refused."""
        try:
            self.call(method, request)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{method} was not refused")
