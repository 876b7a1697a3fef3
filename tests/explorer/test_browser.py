import pytest

from browser import opened


def page(folder, body):
    path = folder / "page.html"
    path.write_text(f"<!doctype html><meta name=viewport content='width=device-width'><body>{body}")
    return path.as_uri()


def test_a_harmless_page_passes(browser, tmp_path):
    with opened(browser, page(tmp_path, "<h1>fine</h1>"), width="phone", scheme="dark") as seen:
        seen.inspect()
        assert seen.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<script>console.error('bad')</script>", "errors"),
        ("<script>throw new Error('worse')</script>", "errors"),
        ("<link rel=stylesheet href=https://example.com/a.css>", "outside"),
        ("<img src=http://example.com/a.png>", "outside"),
        ("<div style='width: 2000px'>wide</div>", "overflow"),
    ],
)
def test_what_is_wrong_with_a_page_is_seen(browser, tmp_path, body, problem):
    with opened(browser, page(tmp_path, body)) as seen:
        assert getattr(seen, problem)
        with pytest.raises(AssertionError):
            seen.inspect()
