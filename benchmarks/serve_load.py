"""The explorer under load: errors, response times and memory of a real server with many concurrent clients.

    python benchmarks/serve_load.py RUN --clients 16 --seconds 120 --out load.json

Each client sends images of the run's test set like a browser, and compares the label with the prediction of `predict`
for the same file. Memory is that of the server process, after a warm-up and at the end.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import uuid
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
import numpy as np
from PIL import Image

from torchmcl._utils import atomic
from torchmcl.explorer.session import Session

PAUSE = 1.0  # seconds between the requests of a client
WARM = 0.25  # fraction of the time after which memory should no longer grow


def ask(address, send, path):
    """Send one image, wait, and return the label that the page shows."""
    session = uuid.uuid4().hex
    sent = {"name": path.name, "data": b64encode(path.read_bytes()).decode()}
    joined = json.dumps({"data": [], "event_data": sent, "fn_index": send, "session_hash": session}).encode()
    post = urllib.request.Request(f"{address}/gradio_api/queue/join", joined, {"Content-Type": "application/json"})
    urllib.request.urlopen(post, timeout=120).close()
    with urllib.request.urlopen(f"{address}/gradio_api/queue/data?session_hash={session}", timeout=120) as stream:
        for line in stream:
            if line.startswith(b"data:") and (told := json.loads(line[5:]))["msg"] == "process_completed":
                if not told["success"]:
                    raise RuntimeError(f"no answer: {told['output']}")
                found = re.search(r"<h2>(.*?)</h2>", told["output"]["data"][0])
                return found[1] if found else told["output"]["data"][0]
    raise RuntimeError("the stream ended without an answer")


def client(address, send, files, until, number):
    """Send requests until a time, and return the seconds of each answer and the errors."""
    times, errors, at = [], [], number
    while time.monotonic() < until:
        path, label = files[at % len(files)]
        began = time.monotonic()
        try:
            if (said := ask(address, send, path)) != label:
                errors.append(f"{path.name}: expected {label}, got {said[:200]}")
        except Exception as problem:
            errors.append(f"{type(problem).__name__}: {problem}")
        times.append(time.monotonic() - began)
        at += 1
        time.sleep(PAUSE)
    return times, errors


def resident(process):
    """Return the megabytes and the open files of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024, len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def measure(run, clients, seconds, folder):
    session = Session.open(run)
    files = []
    for at in range(min(64, len(session.test_set))):
        image = session.images([at])[0]
        path = folder / f"{at}.png"
        Image.fromarray(image.permute(1, 2, 0).expand(-1, -1, 3).numpy()).save(path)
        files.append((path, session.specialists.classes[int(session.specialists.predict(path).label)]))
    line = [sys.executable, "-m", "torchmcl", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[1]
        with urllib.request.urlopen(f"{address}/config") as config:
            functions = json.loads(config.read())["dependencies"]
        send = next(f["id"] for f in functions if any(event == "upload" for _, event in f["targets"]))
        began, memory = time.monotonic(), []
        with ThreadPoolExecutor(clients) as pool:
            asked = [pool.submit(client, address, send, files, began + seconds, n) for n in range(clients)]
            while not all(one.done() for one in asked):
                memory.append((time.monotonic() - began, *resident(process)))
                time.sleep(1)
        took = time.monotonic() - began
        alive = process.poll() is None
    finally:
        process.terminate()
        process.wait(60)
    times = np.concatenate([one.result()[0] for one in asked])
    errors = [error for one in asked for error in one.result()[1]]
    warm = [row for row in memory if row[0] >= WARM * seconds]
    return {
        "run": run.name,
        "clients": clients,
        "seconds": round(took, 1),
        "answers": len(times) - len(errors),
        "errors": len(errors),
        "first_errors": errors[:5],
        "answers_per_second": round((len(times) - len(errors)) / took, 2),
        "median_seconds": round(float(np.median(times)), 3),
        "p95_seconds": round(float(np.quantile(times, 0.95)), 3),
        "longest_seconds": round(float(times.max()), 3),
        "memory_mb": {"start": round(memory[0][1]), "warm": round(warm[0][1]), "end": round(warm[-1][1])},
        "open_files": {"warm": warm[0][2], "end": warm[-1][2]},
        "memory_each_tenth_mb": [round(memory[len(memory) * part // 10][1]) for part in range(10)],
        "alive": alive,
        "machine": machine.describe(threads=os.cpu_count() or 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a trained classification run")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = measure(options.run, options.clients, options.seconds, Path(folder))
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        atomic.write(options.out, text + "\n")
    return 1 if found["errors"] or not found["alive"] else 0


if __name__ == "__main__":
    sys.exit(main())
