"""The pages of the explorer, built with gradio."""

from base64 import b64decode
from collections.abc import Callable
from functools import wraps
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl.errors import TorchmclError, UsageError
from torchmcl.explorer import example_page, members_page, studies_page
from torchmcl.explorer.elements import notice, render
from torchmcl.explorer.session import MAX_BYTES, Session
from torchmcl.studies import names as study_names
from torchmcl.studies import scales

if TYPE_CHECKING:
    import gradio as gr

ALL = "all classes"
# On a narrow screen, the answer is below the input, so the page scrolls to the answer.
SCROLL = "watch('value', () => { if (innerWidth < 700) element.scrollIntoView({behavior: 'smooth'}); });"
MAX_QUEUE = 64  # maximum number of waiting requests; further requests are rejected


def build(session: Session, results: Path) -> "gr.Blocks":
    """Build all pages for a run."""
    import gradio as gr

    with gr.Blocks(title=f"{session.name} · torchmcl", analytics_enabled=False) as blocks:
        gr.HTML(render("header", session=session))
        with gr.Tabs(selected="predict") as tabs:
            with gr.Tab("Predict", id="predict"):
                answer = add_example_tab(session)
            with gr.Tab("Members", id="members") as tab:
                add_members_tab(session, tab, tabs, answer)
            with gr.Tab("Studies", id="studies"):
                add_studies_tab(results)
    blocks.queue(max_size=MAX_QUEUE, default_concurrency_limit=1, api_open=False)
    # By default, gradio keeps the state of 10,000 visits. Here, only visits with a request in the queue need a state.
    blocks.state_session_capacity = MAX_QUEUE
    return blocks


def add_example_tab(session: Session) -> "gr.HTML":
    """Add the page for uploading or choosing an image; return the element that shows the answer."""
    import gradio as gr

    names = session.test.label_names if session.test is not None else ()
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            sent = gr.HTML(render("upload", limit=MAX_BYTES), js_on_load=asset("page.js"), elem_id="mcl-upload")
            chosen = gr.Dropdown([ALL, *names], value=ALL, label="Test images", visible=bool(names))
            grid = gr.HTML(example_page.thumbnails(session, None, 0), js_on_load=asset("page.js"), elem_id="mcl-picks")
        with gr.Column(scale=5, min_width=320):
            answer = gr.HTML(example_page.EMPTY, js_on_load=SCROLL, elem_id="mcl-answer")

    def label(name: str) -> int | None:
        return names.index(name) if name in names else None

    @show_errors
    def upload(event: gr.EventData) -> str:
        image = session.read(decode(event.data), Path(str(event.name)).name[:80])
        return example_page.page(session, session.predict(image))

    @show_errors
    def pick(event: gr.EventData) -> str:
        return example_page.page(session, session.predict_test(to_int(event.pick)))

    @show_errors
    def turn(name: str, event: gr.EventData) -> str:
        return example_page.thumbnails(session, label(name), to_int(event.page))

    @show_errors
    def choose(name: str) -> str:
        return example_page.thumbnails(session, label(name), 0)

    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    sent.upload(upload, None, answer, concurrency_id="model", **private)
    grid.click(pick, None, answer, concurrency_id="model", **private)
    grid.select(turn, chosen, grid, **private)
    chosen.input(choose, chosen, grid, **private)
    return answer


def add_members_tab(session: Session, tab: "gr.Tab", tabs: "gr.Tabs", answer: "gr.HTML") -> None:
    """Add the matrix of claims; a click on a cell shows its examples, and a click on an example shows its answer."""
    import gradio as gr

    with gr.Row():
        with gr.Column(scale=1, min_width=320):
            waiting = notice("Computing predictions for the test set …")
            matrix = gr.HTML(waiting, js_on_load=asset("page.js"), elem_id="mcl-matrix")
        with gr.Column(scale=1, min_width=320):
            examples = gr.HTML("", js_on_load=asset("page.js"), elem_id="mcl-examples")

    @show_errors
    def show() -> str:
        return members_page.matrix(session)

    @show_errors
    def pick(event: gr.EventData) -> str:
        label, _, member = str(event.pick).partition(":")
        if not (0 <= to_int(label) < len(session.test_set.label_names) and 0 <= to_int(member) < session.members):
            raise UsageError("This cell does not exist. Reload the page.")
        return members_page.examples(session, to_int(label), to_int(member))

    @show_errors
    def open_one(event: gr.EventData) -> str:
        return example_page.page(session, session.predict_test(to_int(event.pick)))

    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal", "concurrency_id": "model"}
    tab.select(show, None, matrix, **private)
    matrix.click(pick, None, examples, **private)
    examples.click(open_one, None, answer, **private).then(
        lambda: gr.Tabs(selected="predict"), None, tabs, api_visibility="private"
    )


def add_studies_tab(results: Path) -> None:
    """Add the table of a study; it can be sorted by any column."""
    import gradio as gr

    name, scale = studies_page.first(results)
    with gr.Row():
        chosen = gr.Dropdown([*study_names()], value=name, label="Study")
        size = gr.Radio([*scales.NAMES], value=scale, label="Scale")
    table = gr.HTML(studies_page.page(name, scale, results), js_on_load=asset("page.js"), elem_id="mcl-study")

    @show_errors
    def show(name: str, scale: str) -> str:
        return studies_page.page(name, scale, results)

    for control in (chosen, size):
        control.input(show, [chosen, size], table, api_visibility="private", show_progress="minimal")


def show_errors(answer: Callable[..., str]) -> Callable[..., str]:
    """Decorate a function to return the message of a `TorchmclError` as a notice on the page."""

    @wraps(answer)
    def safe(*arguments: Any) -> str:
        try:
            return answer(*arguments)
        except TorchmclError as error:
            return notice(str(error), "problem")

    return safe


def decode(data: object) -> bytes:
    """Decode a file sent by the browser.

    >>> decode("YWI=")
    b'ab'
    """
    try:
        return b64decode(str(data), validate=True)
    except ValueError as error:
        raise UsageError("The file was not transferred correctly. Upload the file again.") from error


def to_int(text: object) -> int:
    """Convert a number sent by the browser to an integer.

    >>> to_int("12")
    12
    """
    if not str(text).isdecimal() or len(str(text)) > 9:
        raise UsageError("Expected an integer. Reload the page.")
    return int(str(text))


def asset(name: str) -> str:
    """Return the text of a file in this folder."""
    return files("torchmcl.explorer").joinpath(name).read_text(encoding="utf-8")
