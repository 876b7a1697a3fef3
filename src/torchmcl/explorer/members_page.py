"""The page of the members: who claims which class of the test set, and which examples those are."""

from torchmcl._utils.html import Markup, join, tag
from torchmcl.explorer.elements import grid, notice, percent, picture
from torchmcl.explorer.session import Session

SHOWN = 24


def matrix(session: Session) -> Markup:
    """Class by member: the part of the class's test examples that each member claims; a cell is a button."""
    if session.test is None:
        return notice(f"The run's test set is not available. {session.test_error}")
    names = session.test.label_names
    counts = session.claims.counts(len(names), session.members)
    owned = session.specialists.method.owners(session.specialists.memory, None)
    owned = owned if owned is not None and len(owned) == len(names) else None
    heads = [tag("th", f"Member {m + 1}", scope="col") for m in range(session.members)]
    rows = []
    for c, name in enumerate(names):
        total = int(counts[c].sum())
        cells = [
            cell(c, m, name, int(counts[c, m]), total, owned is not None and bool(owned[c, m]))
            for m in range(session.members)
        ]
        rows.append(tag("tr", tag("th", name, scope="row", title=name), *cells))
    table = tag("table", tag("thead", tag("tr", tag("th"), *heads)), tag("tbody", *rows), class_="mcl-matrix")
    told = (
        f"Percentage of each class that each member claims, on {len(session.claims.indices):,} test examples. "
        "The member that is most certain that an example is its own claims it."
    )
    if owned is not None:
        told += " A dot marks the classes that a member owns after training."
    about = tag("p", f"{told} Choose a cell to see its examples.", class_="mcl-legend")
    return join(about, tag("div", table, class_="mcl-scroll"))


def cell(label: int, member: int, name: str, count: int, total: int, owned: bool) -> Markup:
    """One cell, the darker the more."""
    part = count / total if total else 0.0
    about = f"{name}, member {member + 1}: {count} of {total}" + (", owned by this member" if owned else "")
    button = tag(
        "button",
        percent(part) if count else "·",
        tag("i", class_="dot") if owned else None,
        data_pick=f"{label}:{member}",
        style=f"--part:{part:.3f}",
        class_="strong" if part > 0.65 else None,
        title=about,
        aria_label=about,
    )
    return tag("td", button)


def examples(session: Session, label: int, member: int) -> Markup:
    """Examples of a class that a member claims, the wrong ones marked."""
    claims, test = session.claims, session.test_set
    name = test.label_names[label]
    places = claims.indices[(claims.labels == label) & (claims.member == member)].tolist()
    if not places:
        return notice(f"Member {member + 1} claims no examples of {name}.")
    error = dict(zip(claims.indices.tolist(), claims.error.tolist(), strict=True))
    few = places[:SHOWN]
    buttons = [
        tag(
            "button",
            picture(image, ""),
            class_="wrong" if not session.dense and error[at] else None,
            data_pick=at,
            title=f"{percent(error[at])} of the pixels are wrong"
            if session.dense
            else "wrong"
            if error[at]
            else "correct",
            aria_label=f"image {at}",
        )
        for at, image in zip(few, session.images(few), strict=True)
    ]
    told = f"{len(places)} examples of {name} claimed by member {member + 1}" + (
        f" (first {SHOWN})" if len(places) > SHOWN else ""
    )
    marked = "" if session.dense else " A red frame marks a wrong answer of the ensemble."
    about = tag("p", f"Choose an example to predict it.{marked}", class_="mcl-legend")
    return join(tag("h3", told), about, grid(buttons, "thumbs wide"))
