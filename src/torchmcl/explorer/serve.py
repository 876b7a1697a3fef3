import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torchmcl._utils.logs import emit, shown_by_logging
from torchmcl.errors import UsageError
from torchmcl.explorer.middleware import LOOPBACK, AccessMiddleware

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")  # no font is downloaded
MAX_RUNS = 2
LOGGER = logging.getLogger(__name__)


def serve(
    run: str | Path | Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    auth: str | None = None,
    results: str = "results",
    verbose: bool = True,
) -> None:
    """Serve a run in the browser until the process is stopped.

    Args:
        run: the folder of a run that was trained on images or that predicts numbers, or the folders of two runs to
            show side by side
        host: the address to listen on; the default is reachable from this machine only
        port: the port; 0 chooses a free port
        auth: USER:PASSWORD, or a file with one such line per user
        results: the folder with the results of studies
        verbose: whether to print the address and errors, which are always logged to `torchmcl.explorer`

    Raises:
        UsageError: if gradio is not installed, or the run, the credentials or the port cannot be used.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise UsageError("The explorer needs gradio. Install it with: pip install 'torchmcl[web]'") from error
    users = credentials(auth)
    with bound(host, port) as listening, errors_shown(verbose):
        runs = [Path(one) for one in ([run] if isinstance(run, str | Path) else run)]
        app = application(runs, Path(results), users, LOOPBACK if host in LOOPBACK else ())
        address, number = listening.getsockname()[:2]
        url = f"http://{f'[{address}]' if ':' in address else address}:{number}"
        text = f"Explorer: {url}  (press Ctrl-C to stop)"
        emit(LOGGER, logging.INFO, text, partial(print, flush=True) if verbose else None)
        if host not in LOOPBACK and not users:
            text = "Everyone who can reach this address can use the explorer. Set a password with --auth."
            emit(LOGGER, logging.WARNING, text, partial(print, file=sys.stderr) if verbose else None)
        config = uvicorn.Config(
            app,
            log_level="error",
            log_config=None,  # uvicorn's loggers keep the configuration of the program
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
    """Print errors to standard error, unless a logging handler already shows them."""
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


def application(runs: Sequence[Path], results: Path, users: list[str], hosts: tuple[str, ...]) -> AccessMiddleware:
    """Build the application with its access control."""
    import gradio as gr
    from fastapi import FastAPI

    from torchmcl.explorer.app import asset, build
    from torchmcl.explorer.session import Session, check_comparable

    if len(runs) > MAX_RUNS:
        raise UsageError(f"Expected at most {MAX_RUNS} runs to show side by side, got {len(runs)}.")
    sessions = [Session.open(run) for run in runs]
    check_comparable(sessions)
    app = gr.mount_gradio_app(
        FastAPI(openapi_url=None, docs_url=None, redoc_url=None),
        build(sessions, results),
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
    return AccessMiddleware(app, auth=users, hosts=hosts)


def credentials(auth: str | None) -> list[str]:
    """Return the credentials in --auth, which is USER:PASSWORD or the path of a file with one such line per user.

    >>> credentials("me:secret")
    ['me:secret']
    """
    if auth is None:
        return []
    lines = [auth]
    if ":" not in auth or Path(auth).is_file():
        try:
            lines = [line for line in Path(auth).read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                "Cannot read the file given by --auth. Pass USER:PASSWORD, or a file with one such line per user."
            ) from error
    if not lines or any(not user or not word for user, _, word in (line.partition(":") for line in lines)):
        raise UsageError("--auth has a line without a user or a password. Write each line as USER:PASSWORD.")
    return lines


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free port."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"Expected a port from 0 to 65535, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        message = f"Cannot listen on {host}, port {port}: {error.strerror}. Choose another port with --port."
        raise UsageError(message) from error
    return listening
