"""A photograph given to a run on digits: its scores into china.json, the explorer's pages into china.png.

torchmcl train --data digits --out runs/digits
torchmcl calibrate runs/digits --coverage 0.9
python results/explorer/china.py runs/digits
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_sample_image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from browser import chromium, opened
from serving import serving
from torchmcl import Specialists
from torchmcl.analysis.recorder import record
from torchmcl.data.examples import Examples
from torchmcl.data.image_files import ImageFiles
from torchmcl.inference.feature_scores import fit_feature_scores
from torchmcl.serialization.data_config import load_run_data


def scores(run: Path, photo: Path) -> dict:
    """Return the answer to the photograph, and its scores beside those of the test set."""
    specialists = Specialists.load(run)
    channels, height, width = specialists.model_config.shape
    image = Examples(ImageFiles((str(photo),), (height, width), channels), torch.zeros(1).long(), ("unseen",))
    fitted = fit_feature_scores(specialists, load_run_data(run, "train")[1].train)
    seen, other = (record(specialists, x, fitted=fitted) for x in (load_run_data(run, "test")[1].test, image))
    rejection = specialists.model_config.rejection
    return {
        "answer": specialists.predict(str(photo)).row(0, specialists.classes),
        "thresholds": {"confidence": rejection.threshold, "claim": rejection.claim_threshold},
        "scores": {
            name: {
                "photograph": float(other.get(name)[0]),
                "highest of the test set": float(seen.get(name).max()),
                "percent of the test set below": 100 * float((seen.get(name) < other.get(name)[0]).double().mean()),
            }
            for name in seen.scores
        },
    }


def pages(run: Path, photo: Path) -> Image.Image:
    """Return the answer on a desktop and a phone, light and dark, side by side."""
    shots = []
    with tempfile.TemporaryDirectory() as folder, serving(run) as address, chromium() as browser:
        for width in ("desktop", "phone"):
            for scheme in ("light", "dark"):
                with opened(browser, address, width=width, scheme=scheme) as seen:
                    seen.page.locator("#mcl-upload input[type=file]").set_input_files(photo)
                    seen.page.locator(f"#mcl-answer figure[data-name='{photo.name}']").wait_for()
                    seen.page.wait_for_timeout(800)
                    path = Path(folder, "page.png")
                    seen.page.screenshot(path=path, full_page=True)
                    seen.inspect()
                shot = Image.open(path).convert("RGB")
                height = 1020 if width == "desktop" else 1160
                shots.append(shot.crop((0, 0, shot.width, height)).resize((shot.width * 600 // height, 600)))
    whole = Image.new("RGB", (sum(shot.width for shot in shots), 600))
    for i, shot in enumerate(shots):
        whole.paste(shot, (sum(before.width for before in shots[:i]), 0))
    return whole.quantize(256)


if __name__ == "__main__":
    run = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        photo = Path(folder, "china.jpg")
        Image.fromarray(load_sample_image("china.jpg")).save(photo)
        (HERE / "china.json").write_text(json.dumps(scores(run, photo), indent=1) + "\n")
        pages(run, photo).save(HERE / "china.png", optimize=True)
