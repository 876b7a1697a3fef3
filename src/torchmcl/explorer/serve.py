import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torchmcl._utils.logs import emit, shown_by_logging
from torchmcl.errors import UsageError
from torchmcl.explorer.middleware import LOOPBACK, AccessMiddleware

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")  # none is fetched
LOGGER = logging.getLogger(__name__)


def serve(
    run: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    auth: str | None = None,
    results: str = "results",
    verbose: bool = True,
) -> None:
    """Show a run in the browser until it is stopped; loopback alone unless another host is asked for.

    `auth` is USER:PASSWORD, or a file with one such line for everybody who may come in. With `verbose` the address and
    errors are shown on the console; either way they are records of the logger `torchmcl.explorer`.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio  # noqa: F401
        import uvicorn
    except ImportError as absent:
        raise UsageError("Expected gradio for the explorer, found none. Try: pip install 'torchmcl[web]'") from absent
    people = credentials(auth)
    with bound(host, port) as listening, errors_shown(verbose):
        app = application(Path(run), Path(results), people, LOOPBACK if host in LOOPBACK else ())
        place = listening.getsockname()
        shown = f"[{place[0]}]" if ":" in place[0] else place[0]
        address = f"Look: http://{shown}:{place[1]}  (Ctrl-C ends it)"
        emit(LOGGER, logging.INFO, address, partial(print, flush=True) if verbose else None)
        if host not in LOOPBACK and not people:
            text = "Everybody who reaches this address can look. Ask for a password: --auth"
            emit(LOGGER, logging.WARNING, text, partial(print, file=sys.stderr) if verbose else None)
        config = uvicorn.Config(
            app,
            log_level="error",
            log_config=None,  # its loggers follow the program's configuration
            limit_concurrency=256,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=32_768,
            server_header=False,
            ws="none",
        )
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def errors_shown(verbose: bool) -> Iterator[None]:
    """Errors on standard error while this lasts, unless a handler of the caller's shows them."""
    if not verbose or shown_by_logging(LOGGER, logging.ERROR):
        yield
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    package = logging.getLogger("torchmcl")
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)


def application(run: Path, results: Path, people: list[str], hosts: tuple[str, ...]) -> AccessMiddleware:
    """The pages behind their guard."""
    import gradio as gr
    from fastapi import FastAPI

    from torchmcl.explorer.app import asset, build
    from torchmcl.explorer.session import Session

    app = gr.mount_gradio_app(
        FastAPI(openapi_url=None, docs_url=None, redoc_url=None),
        build(Session.open(run), results),
        path="",
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=False,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=gr.themes.Base(
            primary_hue="indigo", neutral_hue="slate", font=FONT, font_mono=("ui-monospace", "monospace")
        ),
        css=asset("page.css"),
    )
    return AccessMiddleware(app, auth=people, hosts=hosts)


def credentials(auth: str | None) -> list[str]:
    """USER:PASSWORD, or the lines of a file of them.

    >>> credentials("me:secret")
    ['me:secret']
    """
    if auth is None:
        return []
    lines = [auth]
    if ":" not in auth or Path(auth).is_file():
        try:
            lines = [line for line in Path(auth).read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError("Expected --auth USER:PASSWORD, or a file of such lines, got neither.") from problem
    if not lines or any(not user or not word for user, _, word in (line.partition(":") for line in lines)):
        raise UsageError("Expected USER:PASSWORD on every line of --auth, got something else.")
    return lines


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"Expected a port from 0 to 65535, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as taken:
        listening.close()
        raise UsageError(
            f"Expected to listen on {host}, port {port}, got: {taken.strerror}. Choose another --port."
        ) from taken
    return listening
