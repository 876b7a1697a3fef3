"""The page of the members: the classes that each member claims on the test set, with examples."""

from collections.abc import Sequence

from torchmcl.explorer.elements import image_url, notice, render
from torchmcl.explorer.session import Session

MAX_EXAMPLES = 24


def matrices(sessions: Sequence[Session]) -> str:
    """Render the matrix of each run, side by side if there are several runs."""
    found = [matrix(session, run) for run, session in enumerate(sessions)]
    return found[0] if len(found) == 1 else render("pair", parts=zip(sessions, found, strict=True))


def matrix(session: Session, run: int = 0) -> str:
    """Render a table of the percentage of each class that each member claims; each cell is a button."""
    if session.test is None:
        return notice(f"The run's test set is not available. {session.test_error}")
    names, claims = session.test.label_names, session.claims
    owned = session.specialists.method.owners(session.specialists.memory, None)
    return render(
        "matrix",
        run=run,
        examples=len(claims.indices),
        members=session.members,
        auxiliary=session.specialists.method.auxiliary,
        rows=list(zip(names, claims.counts(len(names), session.members).tolist(), strict=True)),
        owned=owned.tolist() if owned is not None and len(owned) == len(names) else None,
    )


def examples(session: Session, label: int, member: int) -> str:
    """Render examples of a class that a member claims; a frame marks those that the ensemble gets wrong."""
    claims, name = session.claims, session.test_set.label_names[label]
    chosen = ((claims.labels == label) & (claims.member == member)).nonzero()[:, 0]
    if not len(chosen):
        return notice(f"Member {member + 1} claims no examples of {name}.")
    shown = chosen[:MAX_EXAMPLES]
    indices, errors = claims.indices[shown].tolist(), claims.error[shown].tolist()
    images = [
        {"index": index, "error": error, "src": image_url(image)}
        for index, error, image in zip(indices, errors, session.images(indices), strict=True)
    ]
    return render("examples", name=name, member=member + 1, count=len(chosen), images=images, dense=session.dense)
