"""Take the pictures of the report and the explorer, on a desktop and a phone, light and dark, of runs on digits.

for method in ie amcl smcl; do
  torchmcl train --method $method --network resnet10 --width 8 --members 5 --epochs 8 --data digits --out runs/$method
done
torchmcl calibrate runs/amcl --temperature --coverage 0.9
python results/report/pictures.py runs/ie runs/amcl runs/smcl

The explorer shows the first two runs side by side.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

RESULTS = Path(__file__).parents[1]
sys.path.insert(0, str(RESULTS.parent / "tests"))

from browser import WIDTHS, chromium, opened
from serving import serving
from torchmcl import reporting

SECTIONS = {
    "desktop": ("metrics", "assignment-of-classes", "errors"),
    "phone": ("metrics", "assignment-of-classes", "mistakes"),
}
HEIGHT = {"desktop": 1500, "phone": 1300}  # of a section in pixels
SCALE = {"desktop": 0.44, "phone": 0.6}


def report_tiles(page: Path, browser: object, width: str, scheme: str) -> Iterator[Image.Image]:
    """Yield the sections of a report."""
    with opened(browser, page.as_uri(), width=width, scheme=scheme) as seen, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.png")
        seen.page.screenshot(path=path, full_page=True)
        whole = Image.open(path).convert("RGB")
        for name in SECTIONS[width]:
            top = seen.page.evaluate(f"document.getElementById('{name}').getBoundingClientRect().top + scrollY")
            yield whole.crop((0, int(top) - 16, whole.width, min(int(top) - 16 + HEIGHT[width], whole.height)))
        seen.inspect()


def explorer_tiles(runs: list[Path], browser: object, width: str, scheme: str) -> Iterator[Image.Image]:
    """Yield the first answer and the page of the members of one run, and the answers of two runs side by side."""
    pages = (("Predict", "#mcl-answer .mcl-verdict"), ("Members", "#mcl-matrix [data-pick]"))
    for served, shown in ((runs[1:2], pages), ([runs[1], runs[0]], pages[:1])):
        with (
            serving(*served, "--results", RESULTS) as address,
            tempfile.TemporaryDirectory() as folder,
            opened(browser, address, width=width, scheme=scheme) as seen,
        ):
            for tab, ready in shown:
                seen.page.get_by_role("tab", name=tab).click()
                seen.page.locator(ready).first.wait_for()
                seen.page.wait_for_timeout(800)
                path = Path(folder, f"{tab}.png")
                seen.page.screenshot(path=path, full_page=True)
                shot = Image.open(path).convert("RGB")
                yield shot.crop((0, 0, WIDTHS[width][0], min(HEIGHT[width], shot.height)))
            seen.inspect()


def mosaic(rows: list[list[Image.Image]], scale: float) -> Image.Image:
    """Return rows of pictures in one picture of few colours."""
    small = [[tile.resize((round(scale * tile.width), round(scale * tile.height))) for tile in row] for row in rows]
    width, height = small[0][0].width, max(tile.height for row in small for tile in row)
    whole = Image.new("RGB", (width * len(small[0]), height * len(small)))
    for y, row in enumerate(small):
        for x, tile in enumerate(row):
            whole.paste(tile.getpixel((0, tile.height - 1)), (x * width, y * height, (x + 1) * width, (y + 1) * height))
            whole.paste(tile, (x * width, y * height))
    return whole.quantize(64)


if __name__ == "__main__":
    runs = [Path(argument) for argument in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = reporting.write(runs, Path(folder, "report.html"))
        for name, tiles, source in (("explorer", explorer_tiles, runs), ("report", report_tiles, page)):
            for width in WIDTHS:
                rows = [list(tiles(source, browser, width, scheme)) for scheme in ("light", "dark")]
                mosaic(rows, SCALE[width]).save(RESULTS / name / f"{width}.png", optimize=True)
