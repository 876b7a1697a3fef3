"""Access control for the pages: credentials, size, rate and duration of requests, and allowed paths."""

import asyncio
import logging
import re
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# All paths that the pages use. Gradio's paths for files, uploads, proxies, streams and direct calls are blocked.
READ = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/manifest\.json|/(assets|static|svelte)/[\w./@-]+"
    r"|/gradio_api/(startup-events|app_id|info|queue/data|heartbeat/\w+)/?"
)
WRITE = re.compile(r"/gradio_api/(queue/join|cancel|reset)/?")
HEADERS = {
    # The browser blocks requests to any other server.
    "content-security-policy": "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; form-action 'self'; base-uri 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class Limits:
    """The limits for each client."""

    size: int = 14_000_000  # maximum number of bytes per request
    seconds: float = 30  # maximum time to receive a request
    concurrent: int = 16  # requests being received at the same time; all clients together may send twice as many
    rate: float = 40  # requests per second
    burst: int = 120  # maximum number of requests in a burst


@dataclass
class Bucket:
    """A token bucket that holds up to `burst` tokens and is refilled with `rate` tokens per second.

    >>> bucket = Bucket(rate=1, burst=2, now=0)
    >>> [bucket.take(at) for at in (0, 0, 0, 1)]
    [True, True, False, True]
    """

    rate: float
    burst: float
    now: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now: float) -> bool:
        """Take one token for a request; return False if the bucket is empty."""
        self.left, self.now = min(self.burst, self.left + self.rate * (now - self.now)), now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class RequestError(Exception):
    """An error that is returned to the client as an HTTP status and a one-line message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class AccessMiddleware:
    """An ASGI application that checks requests before it passes them on, and hides internal errors from clients.

    Args:
        app: the application to protect
        auth: "user:password" of each user; everyone has access if empty
        hosts: the allowed host names (this check prevents DNS rebinding); all host names are allowed if empty
        limits: the limits for each client
    """

    def __init__(
        self, app: App, *, auth: Collection[str] = (), hosts: Collection[str] = (), limits: Limits | None = None
    ) -> None:
        self.app, self.hosts, self.limits = app, hosts, limits or Limits()
        self.auth = [_digest(secret.encode()) for secret in auth]
        self.requests: dict[str, Bucket] = {}
        self.failures: dict[str, Bucket] = {}
        self.arriving: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or pass an ASGI lifespan event on to the application."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # the pages use no web sockets
            return
        started = False

        async def respond(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                known = {name for name, _ in message.get("headers", [])}
                extra = [(name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in known]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        try:
            self._check(scope)
            if scope["method"] == "POST":
                receive = await self._read(_client(scope), receive)
            await self.app(scope, receive, respond)
        except RequestError as error:
            await _send_text(respond, error.status, error.message)
        except Exception:
            logging.getLogger(__name__).exception("A request failed: %s %s", scope["method"], scope["path"])
            if not started:
                await _send_text(respond, 500, "Internal server error.")

    def _check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in scope["headers"]}
        host = headers.get("host", "")
        if self.hosts and urlsplit(f"//{host}").hostname not in self.hosts:
            raise RequestError(403, "Requests to this host name are not allowed.")
        client = _client(scope)
        if self.auth and not self._authorized(headers.get("authorization", ""), client):
            raise RequestError(401, "A user name and a password are required.")
        path, write = scope["path"], scope["method"] == "POST"
        pattern = WRITE if write else READ
        if scope["method"] not in ("GET", "HEAD", "POST") or not pattern.fullmatch(path) or ".." in path:
            raise RequestError(404, "Not found.")
        if write:
            origin = headers.get("origin")
            if origin not in (None, "null") and urlsplit(origin).netloc != host:
                raise RequestError(403, "Requests from other sites are not allowed.")
            if not _bucket(self.requests, client, self.limits.rate, self.limits.burst).take(time.monotonic()):
                raise RequestError(429, "Too many requests. Wait a moment.")

    def _authorized(self, header: str, client: str) -> bool:
        """Check HTTP Basic credentials, and limit the rate of failed attempts."""
        kind, _, secret = header.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            digest = _digest(b64decode(secret, validate=True))
        except ValueError:
            digest = b""
        if sum(compare_digest(digest, known) for known in self.auth):  # compares with all users, in constant time
            return True
        if not _bucket(self.failures, client, 0.5, 10).take(time.monotonic()):
            raise RequestError(429, "Too many wrong passwords. Wait a moment.")
        return False

    async def _read(self, client: str, receive: Receive) -> Receive:
        """Read the body of a request within the limits; return a function that replays it."""
        parts, size, more = [], 0, True
        self.arriving[client] += 1
        try:
            if max(2 * self.arriving[client], self.arriving.total()) > 2 * self.limits.concurrent:
                raise RequestError(429, "Too many requests at once. Wait a moment.")
            async with asyncio.timeout(self.limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "The request is incomplete.")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > self.limits.size:
                        raise RequestError(413, f"At most {self.limits.size // 1000:,} kB are allowed per request.")
        except TimeoutError as error:
            raise RequestError(408, f"The request took more than {self.limits.seconds:g} seconds.") from error
        finally:
            self.arriving[client] -= 1
            self.arriving += Counter()  # removes clients without requests
        body = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay() -> Message:
            return body.pop() if body else await receive()

        return replay


def _bucket(buckets: dict[str, Bucket], client: str, rate: float, burst: float) -> Bucket:
    now = time.monotonic()
    if len(buckets) > 10_000:  # remove buckets that are full again
        for name in [name for name, bucket in buckets.items() if (now - bucket.now) * rate >= burst]:
            del buckets[name]
    return buckets.setdefault(client, Bucket(rate, burst, now))


def _client(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown", 0))[0])


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


async def _send_text(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="torchmcl", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
