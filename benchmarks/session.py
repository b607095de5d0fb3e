"""Record a first session in docs/session.md, with the time of each command and screenshots of the resulting pages.

    python benchmarks/session.py          takes minutes; runs in a fresh clone; needs Chromium and uv

The commands run in order, as shown on the page. Their output is shortened, without local paths and progress bars.
"""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Literal

from common import ROOT, machine
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_digits

DOCS = ROOT / "docs"
# Text, command, and how many of the first and last output lines to show.
STEPS: list[tuple[str, str, int, int]] = [
    ("Install the locked packages into a new environment:", "make setup", 0, 0),
    ("Train, test and predict:", "make demo", 3, 9),
    ("Train with three seeds:", "lit-project repeat -c configs/quickstart.yaml --seeds 1 2 3 --workers 2", 1, 14),
    (
        "Train with the same seeds and without dropout:",
        "lit-project repeat -c configs/quickstart.yaml --seeds 1 2 3 --workers 2 \\\n"
        "    --dir repeats/no_dropout --model.net.dropout=0 --model.net.head_dropout=0",
        0,
        7,
    ),
    ("Compare both:", "lit-project compare repeats --over seed_everything", 0, 12),
    ("Search for better hyperparameters:", "lit-project sweep configs/sweeps/quickstart_cnn.yaml --workers 2", 0, 9),
    ("Export the model:", "lit-project export --run RUN --format pt2,onnx,safetensors", 0, 8),
    (
        "Predict a digit from an image file:",
        "lit-project predict --run RUN --images digit.png\ncat RUN/predictions/images_digit.csv",
        0,
        3,
    ),
    (
        "Predict the same digit in an environment that has neither torch nor this project:",
        "uv venv --quiet elsewhere\n"
        "uv pip install --quiet --python elsewhere onnxruntime pillow\n"
        "elsewhere/bin/python classify.py RUN/export/model.onnx digit.png",
        0,
        1,
    ),
]  # fmt: skip
RUN = "repeats/quickstart/quickstart/seed-1"
CLASSIFY = """import json
import sys

import numpy as np
from onnxruntime import InferenceSession
from PIL import Image

net = InferenceSession(sys.argv[1])
about = json.loads(net.get_modelmeta().custom_metadata_map["about"])
image = np.asarray(Image.open(sys.argv[2]), np.float32)[None, None] / 255
(probabilities,) = net.run(None, {"images": image})
best = probabilities[0].argmax()
print(about["class_names"][best], probabilities[0, best])
"""
# Name, title and path.
PAGES = [
    ("run", "A run page", f"{RUN}/index.html"),
    ("compare", "A comparison page", "repeats/compare.html"),
    ("sweep", "A sweep page", "sweeps/quickstart_cnn/index.html"),
]


def shown(text: str, first: int, last: int, folder: Path) -> str:
    """Return the first and last lines, without local paths or progress bars."""
    text = re.sub(
        r"\x1b\[[\d;]*[A-Za-z]|^.*\r(?!\n)", "", text.replace(f"{folder}/", "").replace(str(folder), "."), flags=re.M
    )
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > first + last:
        lines = [*lines[:first], *(["…"] if first + last else []), *lines[len(lines) - last :]]
    return "\n".join(lines)


def run(command: str, folder: Path) -> tuple[str, float]:
    """Run a command, and return its output and time. Exit if the command fails."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**inherited, "PATH": path, "COLUMNS": "110", "OMP_WAIT_POLICY": "PASSIVE"}
    begin = time.perf_counter()
    words = ["bash", "-ec", f"exec 2>&1\n{command}"]
    done = subprocess.run(words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}")
    return done.stdout, time.perf_counter() - begin


def pictures(folder: Path) -> list[str]:
    """Return Markdown lines with the pages, their sizes, and screenshots (light on a screen, dark on a phone)."""
    lines = []
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, title, where in PAGES:
            for kind, width, height, dark in (("screen", 1000, 750, False), ("phone", 390, 750, True)):
                scheme: Literal["dark", "light"] = "dark" if dark else "light"
                page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto((folder / where).as_uri())
                page.screenshot(path=DOCS / "figures" / f"page_{name}_{kind}.png")
                page.close()
            size = (folder / where).stat().st_size / 1000
            lines += [f"{title}, `{where}` ({size:,.0f} kB):", ""]
            lines += [
                f"![{title}](figures/page_{name}_screen.png)",
                f"![{title} on a phone](figures/page_{name}_phone.png)",
                "",
            ]
        chromium.close()
    return lines


def main() -> None:
    """Record the session."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "lit_project"
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        about = machine()
        lines = [
            "# A first session",
            "",
            "`python benchmarks/session.py` recorded this session, from a clone to an exported model, on a machine",
            f"with {about['cores']} cores ({about['cpu'].replace('(R)', '')}). All commands together took {{total}}",
            "",
        ]
        total = 0.0
        for said, command, first, last in STEPS:
            command = command.replace("RUN", RUN)
            if "digit.png" in command and not (folder / "digit.png").exists():
                Image.fromarray((load_digits().images[0] * 255 / 16).round().astype("uint8")).save(folder / "digit.png")
            if "classify.py" in command:
                (folder / "classify.py").write_text(CLASSIFY)
                said += f"\n\n```py\n{CLASSIFY}```"
            printed, seconds = run(command, folder)
            total += seconds
            print(f"{seconds:6.1f} s  {command}", flush=True)
            lines += [said, "", "```sh", command, "```", ""]
            if text := shown(printed, first, last, folder):
                lines += ["```text", text, "```", ""]
            lines += [f"{seconds:.1f} s.", ""]
        lines += ["The pages work without a network or a server:", "", *pictures(folder)]
    text = "\n".join(lines).replace("{total}", f"{total / 60:.1f} minutes.")
    (DOCS / "session.md").write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
