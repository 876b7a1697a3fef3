import os
import socket
import sys
from pathlib import Path

from torchmcl.errors import UsageError
from torchmcl.explorer.guard import LOOPBACK, Guard

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")  # none is fetched


def serve(
    run: str | Path, *, host: str = "127.0.0.1", port: int = 7860, auth: str | None = None, results: str = "results"
) -> None:
    """Show a run in the browser until it is stopped; loopback alone unless another host is asked for.

    `auth` is USER:PASSWORD, or a file with one such line for everybody who may come in.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio  # noqa: F401
        import uvicorn
    except ImportError as absent:
        raise UsageError("Expected gradio for the explorer, found none. Try: pip install 'torchmcl[web]'") from absent
    people = credentials(auth)
    with bound(host, port) as listening:
        app = application(Path(run), Path(results), people, LOOPBACK if host in LOOPBACK else ())
        place = listening.getsockname()
        shown = f"[{place[0]}]" if ":" in place[0] else place[0]
        print(f"Look: http://{shown}:{place[1]}  (Ctrl-C ends it)", flush=True)
        if host not in LOOPBACK and not people:
            print("torchmcl: everybody who reaches this address can look. Ask for a password: --auth", file=sys.stderr)
        config = uvicorn.Config(
            app,
            log_level="error",
            limit_concurrency=256,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=32_768,
            server_header=False,
            ws="none",
        )
        uvicorn.Server(config).run(sockets=[listening])


def application(run: Path, results: Path, people: list[str], hosts: tuple[str, ...]) -> Guard:
    """The pages behind their guard."""
    import gradio as gr
    from fastapi import FastAPI

    from torchmcl.explorer.page import asset, build
    from torchmcl.explorer.subject import Subject

    app = gr.mount_gradio_app(
        FastAPI(openapi_url=None, docs_url=None, redoc_url=None),
        build(Subject.open(run), results),
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
    return Guard(app, auth=people, hosts=hosts)


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
