"""gRPC channels to servers, and the reason when a server cannot be reached. [I/O]"""

import asyncio
import os
import ssl
import tempfile

import grpc

from rota.identity.node_identity import NodeIdentity
from rota.model.names import is_port

SERVER_NAME = "rota-server"
_DIAGNOSE_SECONDS = 5.0
_CLOSED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # the server itself answers with neither
_NOT_ACCEPTED = "it does not accept this node's certificate"
_REJOIN = (
    "if the cluster's CA was rotated while this node was away, get a line with `rota node token` "
    "and start with --join"
)
_OPTIONS = [
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # also the timeout of a connection attempt
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
]


def channel(address: str, identity: NodeIdentity) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.chain_pem)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Why a call failed. For a closed connection gRPC's own text only names the HTTP/2 frame."""
    if error.code() in _CLOSED:
        return "the server has closed the connection"
    return error.details() or error.code().name


async def probe_port(address: str) -> str | None:
    """TCP connect check, cheaper than a channel: the error, or None. While no server leads none listens."""
    host, _, port = address.rpartition(":")
    if not is_port(port):
        return "not an address: want host:port"
    try:
        async with asyncio.timeout(_DIAGNOSE_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return _reason(error)
    except ValueError:  # a name that no resolver takes
        return "not an address: want host:port"
    writer.transport.abort()
    return None


async def diagnose(address: str, identity: NodeIdentity) -> str:
    """Repeat a TLS handshake that failed in gRPC, which hides the reason, and return the reason."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=identity.ca_pem.decode())
    context.set_alpn_protocols(["h2"])  # without it a gRPC server closes every connection
    with tempfile.NamedTemporaryFile() as file:  # private to this user, as the file of the key itself
        file.write(identity.chain_pem + identity.key_pem)
        file.flush()
        context.load_cert_chain(file.name)
    try:
        async with asyncio.timeout(_DIAGNOSE_SECONDS):
            reader, writer = await asyncio.open_connection(
                host.strip("[]"), int(port), ssl=context, server_hostname=SERVER_NAME
            )
            try:
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                # With TLS 1.3 the server rejects our certificate after the handshake: by an alert, or by a
                # close, which becomes a reset if it crosses what we have just written.
                answer = await reader.read(1)
            except ConnectionError:
                answer = b""
            finally:
                writer.transport.abort()
    except TimeoutError:
        return "no answer"
    except ssl.SSLCertVerificationError as error:
        return f"TLS: {error.reason}: no authority that this node trusts has signed the server's: {_REJOIN}"
    except ssl.SSLError as error:
        return f"TLS: {error.reason or error}"
    except OSError as error:
        return _reason(error)
    if not answer:
        return f"the server closed the connection after the handshake: {_NOT_ACCEPTED}: {_REJOIN}"
    return "the server closed the connection"


def _reason(error: OSError) -> str:
    """The kernel's text instead of asyncio's; resolver errors have negative numbers and their own text."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)
