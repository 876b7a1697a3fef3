"""The pages of the explorer, built with gradio."""

import logging
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl._utils.templates import shared
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.explorer import example_page, hypotheses_page, members_page, studies_page
from torchmcl.explorer.elements import notice, render
from torchmcl.explorer.session import MAX_BYTES, Session

if TYPE_CHECKING:
    import gradio as gr

SCRIPT = shared("sort.js") + files("torchmcl.explorer").joinpath("page.js").read_text(encoding="utf-8")
# On a narrow screen, the answer is below the input, so the page scrolls to the answer.
SCROLL = "watch('value', () => { if (innerWidth < 700) element.scrollIntoView({behavior: 'smooth'}); });"
# The settings of each event; predictions are made one at a time.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
# Every choice is answered, in order; by default, those made while an earlier one is being answered are ignored.
MODEL = PRIVATE | {"concurrency_id": "model", "trigger_mode": "multiple"}
MAX_QUEUE = 64  # maximum number of waiting requests; further requests are rejected
LOGGER = logging.getLogger(__name__)


def build(sessions: Sequence[Session], results: Path) -> "gr.Blocks":
    """Build all pages for a run, or for several runs side by side."""
    import gradio as gr

    studies = studies_page.belonging(results, sessions[0].data)
    with gr.Blocks(
        title=f"{' and '.join(each.name for each in sessions)} · torchmcl", analytics_enabled=False
    ) as blocks:
        gr.HTML("".join(render("header", session=session) for session in sessions))
        with gr.Tabs(selected="predict") as tabs:
            with gr.Tab("Predict", id="predict"):
                answer = add_example_tab(sessions)
            if not sessions[0].targets:
                with gr.Tab("Members", id="members") as tab:
                    add_members_tab(sessions, tab, tabs, answer)
            if studies:
                with gr.Tab("Studies", id="studies"):
                    add_studies_tab(studies, results)
    blocks.queue(max_size=MAX_QUEUE, default_concurrency_limit=1, api_open=False)
    # By default, gradio keeps the state of 10,000 visits. Here, only visits with a request in the queue need a state.
    blocks.state_session_capacity = MAX_QUEUE
    return blocks


def add_example_tab(sessions: Sequence[Session]) -> "gr.HTML":
    """Add the page for uploading or choosing an example; return the element that shows the answer."""
    import gradio as gr

    known = all(session.test is not None for session in sessions)
    shown = show_errors(of_test)(sessions, 0) if known else example_page.EMPTY
    scroll = "" if sessions[0].targets else SCROLL  # the number of the example and its values must stay in view
    answer = gr.HTML(shown, js_on_load=SCRIPT + scroll, elem_id="mcl-answer", render=False)
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            if sessions[0].images_shown:
                add_upload(sessions, answer)
            (add_inputs if sessions[0].targets else add_thumbnails)(sessions, answer)
        with gr.Column(scale=5, min_width=320):
            answer.render()  # type: ignore[no-untyped-call]
    return answer


def of_test(sessions: Sequence[Session], index: int) -> str:
    """Render the answer of each run for an example of the test set."""
    return example_page.pages(sessions, lambda session: session.predict_test(index))


def picked(sessions: Sequence[Session]) -> Callable[..., str]:
    """Return the handler of a click on an example of the test set."""
    import gradio as gr

    @show_errors
    def pick(event: gr.EventData) -> str:
        return of_test(sessions, to_int(event.pick))

    return pick


def add_upload(sessions: Sequence[Session], answer: "gr.HTML") -> None:
    """Add the field for uploading an image."""
    import gradio as gr

    sent = gr.HTML(render("upload", limit=MAX_BYTES), js_on_load=SCRIPT, elem_id="mcl-upload")

    @show_errors
    def upload(event: gr.EventData) -> str:
        content, name = decode(event.data), Path(str(event.name)).name[:80]
        return example_page.pages(sessions, lambda session: session.predict_file(content, name))

    sent.upload(upload, None, answer, **MODEL)


def add_thumbnails(sessions: Sequence[Session], answer: "gr.HTML") -> None:
    """Add the images of the test set to choose from."""
    import gradio as gr

    grid = gr.HTML(show_errors(example_page.thumbnails)(sessions[0]), js_on_load=SCRIPT, elem_id="mcl-picks")

    @show_errors
    def turn(event: gr.EventData) -> str:
        label, _, page = str(event.page).partition(":")
        return example_page.thumbnails(sessions[0], to_int(label) if label else None, to_int(page))

    grid.click(picked(sessions), None, answer, **MODEL)
    grid.select(turn, None, grid, **PRIVATE)


def add_inputs(sessions: Sequence[Session], answer: "gr.HTML") -> None:
    """Add the number of the test example, and its input values, for a run that predicts numbers."""
    import gradio as gr

    first, show = sessions[0], picked(sessions)

    def choose(event: gr.EventData) -> tuple[str, str]:
        return show(event), fields(event)

    @show_errors
    def fields(event: gr.EventData) -> str:
        return hypotheses_page.inputs(first, to_int(event.pick))

    @show_errors
    def edit(event: gr.EventData) -> str:
        values = str(event.values).split(",")
        return example_page.pages(sessions, lambda session: session.predict_values(values))

    number = gr.HTML(hypotheses_page.number(first), js_on_load=SCRIPT, elem_id="mcl-number")
    values = gr.HTML(hypotheses_page.inputs(first, 0), js_on_load=SCRIPT, elem_id="mcl-inputs")
    number.click(choose, None, [answer, values], **MODEL)
    values.click(show, None, answer, **MODEL)
    values.input(edit, None, answer, **MODEL)


def add_members_tab(sessions: Sequence[Session], tab: "gr.Tab", tabs: "gr.Tabs", answer: "gr.HTML") -> None:
    """Add the matrix of claims; a click on a cell shows its examples, and a click on an example shows its answer."""
    import gradio as gr

    with gr.Row():
        with gr.Column(scale=len(sessions), min_width=320):
            waiting = notice("Computing predictions for the test set …")
            matrix = gr.HTML(waiting, js_on_load=SCRIPT, elem_id="mcl-matrix")
        with gr.Column(scale=1, min_width=320):
            empty = '<div class="mcl-empty">The examples of the cell that you choose are shown here.</div>'
            examples = gr.HTML(empty, js_on_load=SCRIPT, elem_id="mcl-examples")

    @show_errors
    def show() -> str:
        return members_page.matrices(sessions)

    @show_errors
    def pick(event: gr.EventData) -> str:
        run, label, member = (to_int(part) for part in (str(event.pick) + "::").split(":")[:3])
        if not (run < len(sessions) and label < len(sessions[run].test_set.label_names)):
            raise UsageError("This cell does not exist. Reload the page.")
        if member >= sessions[run].members:
            raise UsageError("This member does not exist. Reload the page.")
        return members_page.examples(sessions[run], label, member)

    tab.select(show, None, matrix, **MODEL)
    matrix.click(pick, None, examples, **MODEL)
    examples.click(picked(sessions), None, answer, **MODEL).then(
        lambda: gr.Tabs(selected="predict"), None, tabs, api_visibility="private"
    )


def add_studies_tab(studies: Sequence[tuple[str, str]], results: Path) -> None:
    """Add the table of a study; it can be sorted by any column."""
    import gradio as gr

    by_title = {f"{name}, {scale}": (name, scale) for name, scale in studies}
    first = next(iter(by_title))
    chosen = gr.Dropdown([*by_title], value=first, label="Study")
    table = gr.HTML(studies_page.page(*by_title[first], results), js_on_load=SCRIPT, elem_id="mcl-study")

    @show_errors
    def show(title: str) -> str:
        if title not in by_title:
            raise UsageError("This study does not exist. Reload the page.")
        return studies_page.page(*by_title[title], results)

    chosen.input(show, chosen, table, **PRIVATE)


def show_errors(answer: Callable[..., str]) -> Callable[..., str]:
    """Decorate a function to return the message of an error as a notice on the page.

    Errors that are not a `TorchmclError` are logged, and the notice does not tell their details.
    """

    @wraps(answer)
    def safe(*arguments: Any) -> str:
        try:
            return answer(*arguments)
        except TorchmclError as error:
            return notice(without_objects(str(error)), "problem")
        except Exception:
            LOGGER.exception("A request failed.")
            return notice("The server could not answer. Its log has the details.", "problem")

    return safe


def without_objects(text: str) -> str:
    """Remove the representations of Python objects from a message.

    >>> without_objects("a.png cannot be read: cannot identify image file <_io.BytesIO object at 0x7f00>. Use PNG.")
    'a.png cannot be read: cannot identify image file. Use PNG.'
    """
    return re.sub(r"\s*<\S+ object at 0x[0-9a-fA-F]+>", "", text)


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
