"""The pages themselves, in gradio: look, members, studies."""

from base64 import b64decode
from collections.abc import Callable
from functools import wraps
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmcl._utils.html import Markup, tag
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.explorer import example_page, members_page, studies_page
from torchmcl.explorer.elements import notice
from torchmcl.explorer.session import Session
from torchmcl.studies import names as study_names
from torchmcl.studies import scales

if TYPE_CHECKING:
    import gradio as gr

ALL = "all classes"
# Where the answer stands below what was asked, it is brought into view.
SCROLL = "watch('value', () => { if (innerWidth < 700) element.scrollIntoView({behavior: 'smooth'}); });"
WAITING = 64  # questions; whoever comes after is told that it is full


def build(session: Session, results: Path) -> "gr.Blocks":
    """All pages of a run."""
    import gradio as gr

    with gr.Blocks(title=f"{session.name} · torchmcl", analytics_enabled=False) as blocks:
        gr.HTML(header(session))
        with gr.Tabs(selected="look") as tabs:
            with gr.Tab("Look", id="look"):
                answer = add_example_tab(session)
            with gr.Tab("Members", id="members") as tab:
                add_members_tab(session, tab, tabs, answer)
            with gr.Tab("Studies", id="studies"):
                add_studies_tab(results)
    blocks.queue(max_size=WAITING, default_concurrency_limit=1, api_open=False)
    # Gradio keeps a copy of the page for each of the last 10,000 visits; nothing here needs more than those at work.
    blocks.state_session_capacity = WAITING
    return blocks


def add_example_tab(session: Session) -> "gr.HTML":
    """Send a picture or choose one -> where the answer is shown."""
    import gradio as gr

    names = session.test.label_names if session.test is not None else ()
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            sent = gr.HTML(example_page.drop(), js_on_load=asset("page.js"), elem_id="mcl-upload")
            chosen = gr.Dropdown([ALL, *names], value=ALL, label="Or one of the test set", visible=bool(names))
            grid = gr.HTML(example_page.thumbnails(session, None, 0), js_on_load=asset("page.js"), elem_id="mcl-picks")
        with gr.Column(scale=5, min_width=320):
            answer = gr.HTML(example_page.empty(), js_on_load=SCROLL, elem_id="mcl-answer")

    def label(name: str) -> int | None:
        return names.index(name) if name in names else None

    @told
    def ask(event: gr.EventData) -> str:
        return example_page.page(
            session, session.look(session.read(content(event.data), Path(str(event.name)).name[:80]))
        )

    @told
    def pick(event: gr.EventData) -> str:
        return example_page.page(session, session.pick(whole(event.pick)))

    @told
    def turn(name: str, event: gr.EventData) -> str:
        return example_page.thumbnails(session, label(name), whole(event.page))

    @told
    def choose(name: str) -> str:
        return example_page.thumbnails(session, label(name), 0)

    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    sent.upload(ask, None, answer, concurrency_id="model", **private)
    grid.click(pick, None, answer, concurrency_id="model", **private)
    grid.select(turn, chosen, grid, **private)
    chosen.input(choose, chosen, grid, **private)
    return answer


def add_members_tab(session: Session, tab: "gr.Tab", tabs: "gr.Tabs", answer: "gr.HTML") -> None:
    """Who claims what; a click on a cell shows examples, a click on one of those looks at it."""
    import gradio as gr

    with gr.Row():
        with gr.Column(scale=1, min_width=320):
            matrix = gr.HTML(
                notice("The members are being asked about the test set …"),
                js_on_load=asset("page.js"),
                elem_id="mcl-matrix",
            )
        with gr.Column(scale=1, min_width=320):
            examples = gr.HTML("", js_on_load=asset("page.js"), elem_id="mcl-examples")

    @told
    def show() -> str:
        return members_page.matrix(session)

    @told
    def pick(event: gr.EventData) -> str:
        label, _, member = str(event.pick).partition(":")
        if not (0 <= whole(label) < len(session.pictures.label_names) and 0 <= whole(member) < session.members):
            raise UsageError("Expected a cell of the matrix.")
        return members_page.examples(session, whole(label), whole(member))

    @told
    def open_one(event: gr.EventData) -> str:
        return example_page.page(session, session.pick(whole(event.pick)))

    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal", "concurrency_id": "model"}
    tab.select(show, None, matrix, **private)
    matrix.click(pick, None, examples, **private)
    examples.click(open_one, None, answer, **private).then(
        lambda: gr.Tabs(selected="look"), None, tabs, api_visibility="private"
    )


def add_studies_tab(results: Path) -> None:
    """A study at a scale, as a table that can be sorted."""
    import gradio as gr

    name, scale = studies_page.first(results)
    with gr.Row():
        chosen = gr.Dropdown([*study_names()], value=name, label="Study")
        size = gr.Radio([*scales.NAMES], value=scale, label="Scale")
    table = gr.HTML(studies_page.page(name, scale, results), js_on_load=asset("page.js"), elem_id="mcl-study")

    @told
    def show(name: str, scale: str) -> str:
        return studies_page.page(name, scale, results)

    for control in (chosen, size):
        control.input(show, [chosen, size], table, api_visibility="private", show_progress="minimal")


def header(session: Session) -> Markup:
    """What is looked at, in a line."""
    model_config, metrics = session.specialists.model_config, session.specialists.metrics
    chips = [
        (session.specialists.method.name).upper(),
        f"{model_config.members} x {model_config.network or 'own network'}",
        f"{len(model_config.classes)} classes",
    ]
    for figure, text in (("top1_error", "top-1 error"), ("oracle_error", "oracle error"), ("mean_iou", "mean IoU")):
        if isinstance(metrics.get(figure), int | float):
            chips.append(f"{text} {metrics[figure]:.1f} %")
    said = [tag("span", chip, class_="mcl-chip") for chip in chips]
    return tag("header", tag("h1", session.name), tag("div", said), class_="mcl-header")


def told(answer: Callable[..., str]) -> Callable[..., str]:
    """What cannot be done is said in the page, in its one line."""

    @wraps(answer)
    def safe(*arguments: Any) -> str:
        try:
            return answer(*arguments)
        except TorchmclError as problem:
            return notice(str(problem), "problem")

    return safe


def content(data: object) -> bytes:
    """A file that came from a browser.

    >>> content("YWI=")
    b'ab'
    """
    try:
        return b64decode(str(data), validate=True)
    except ValueError as problem:
        raise UsageError("Expected a picture, got something else.") from problem


def whole(text: object) -> int:
    """A number that came from a browser.

    >>> whole("12")
    12
    """
    if not str(text).isdecimal() or len(str(text)) > 9:
        raise UsageError("Expected a whole number.")
    return int(str(text))


def asset(name: str) -> str:
    """A file beside this one."""
    return files("torchmcl.explorer").joinpath(name).read_text(encoding="utf-8")
