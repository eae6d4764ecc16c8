"""`python -m benchmarks.experiments.drawn_text MODEL.toml ...`: the quality of models of text, on text that is drawn.

Words of ImageNet's classes and numbers are drawn with Debian's DejaVu fonts (`apt-get install fonts-dejavu`) in sizes,
colours, blur, noise and JPEG as the seed has it, and `edge-sdk evaluate` counts. A reader of lines (task text) gets one
line a picture, a classifier with two labels lines of which half are upside down, a detector pages of up to eight lines
that do not touch. Drawn text is easier than photographed text: the figures say that a model is read as it should be.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk_tools.datasets.class_names import LISTS
from edge_sdk_tools.evaluate.evaluation import evaluate

_FONTS = sorted(Path("/usr/share/fonts/truetype/dejavu").glob("DejaVuS*.ttf"))
_PAGE, _ROW, _MARGIN = 640, 80, 10


class _Pen:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.words = [word for line in LISTS["imagenet1k"].read_text("utf-8").split() if (word := line.strip(",.()"))]

    def text(self) -> str:
        """Return one to three words or numbers, of at most 24 characters."""
        number = "".join(map(str, self.random.integers(0, 10, self.random.integers(2, 7))))
        words = [*self.random.choice(self.words, self.random.integers(0, 3)), number]
        self.random.shuffle(words)
        return " ".join(words[: int(self.random.integers(1, 4))])[:24].strip()

    def line(self, text: str, largest_px: int, ground: np.ndarray, ink: np.ndarray) -> np.ndarray:
        """Return a picture of a text, uint8 (H, W, 3), with a margin around its letters' full height."""
        font = ImageFont.truetype(str(self.random.choice(_FONTS)), int(self.random.integers(18, largest_px)))
        left, _, right, _ = (round(side) for side in font.getbbox(text))
        size = right - left + 2 * _MARGIN, sum(font.getmetrics()) + 2 * _MARGIN
        image = Image.new("RGB", size, tuple(ground.tolist()))
        ImageDraw.Draw(image).text((_MARGIN - left, _MARGIN), text, tuple(ink.tolist()), font)
        return np.array(image)

    def colours(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a light and a dark colour, in any order."""
        pair = [self.random.integers(160, 256, 3), self.random.integers(0, 90, 3)]
        self.random.shuffle(pair)
        return pair[0], pair[1]

    def write(self, path: Path, picture: np.ndarray) -> None:
        """Write a picture as a poor camera would: blurred, with noise, as JPEG."""
        blurred = cv2.GaussianBlur(picture, (0, 0), float(self.random.uniform(0.1, 1.2)))
        noise = self.random.normal(0, self.random.uniform(0, 12), picture.shape)
        seen = np.clip(blurred + noise, 0, 255).astype(np.uint8)
        cv2.imwrite(str(path), seen, [cv2.IMWRITE_JPEG_QUALITY, int(self.random.integers(50, 96))])


def _lines(pen: _Pen, folder: Path, count: int, *, turns: bool) -> None:
    rows = []
    for number in range(count):
        text, is_turned = pen.text(), turns and number % 2
        line = pen.line(text, 48, *pen.colours())
        pen.write(folder / f"{number}.jpg", line[::-1, ::-1] if is_turned else line)
        rows.append((f"{number}.jpg", int(is_turned) if turns else text))
    with (folder / ("labels.csv" if turns else "texts.csv")).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("file", "class_id" if turns else "text"), *rows])


def _pages(pen: _Pen, folder: Path, count: int) -> None:
    (folder / "images").mkdir()
    (folder / "labels").mkdir()
    for number in range(count):
        ground, ink = pen.colours()
        page, rows = np.full((_PAGE, _PAGE, 3), ground, np.uint8), []
        for row in range(0, _PAGE, _ROW):
            line = pen.line(pen.text(), 40, ground, ink)[:_ROW, :_PAGE]
            height, width = line.shape[:2]
            if pen.random.random() < 0.7:
                x, y = pen.random.integers(0, _PAGE - width + 1), row + pen.random.integers(0, _ROW - height + 1)
                page[y : y + height, x : x + width] = line
                middle = x + width / 2, y + height / 2, width - 2 * _MARGIN, height - 2 * _MARGIN
                rows.append("0 " + " ".join(f"{value / _PAGE:.6f}" for value in middle))
        pen.write(folder / "images" / f"{number}.jpg", page)
        (folder / "labels" / f"{number}.txt").write_text("\n".join(rows), encoding="utf-8")


def _drawing_for(spec: ModelSpec) -> Callable[[_Pen, Path, int], None]:
    if spec.task == "detection":
        return _pages
    return lambda pen, folder, count: _lines(pen, folder, count, turns=spec.task == "classification")


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--count", type=click.IntRange(min=20), default=200, show_default=True, help="Pictures for each model.")
@click.option("--seed", default=20, show_default=True)
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="A folder for the pictures.")
def main(models: tuple[Path, ...], count: int, seed: int, keep: Path | None) -> None:
    """Print the figures of MODELS on pictures that are drawn for each."""
    for model in models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (keep or Path(temporary)) / model.absolute().parent.name
            folder.mkdir(parents=True)
            _drawing_for(load_model_spec(model))(_Pen(seed), folder, count)
            found = evaluate(model, folder)
        for figure in found.quality:
            low, high = figure.value.low, figure.value.high
            print(f"{model}: {figure.name} {figure.value.value:.1%} [{low:.1%} to {high:.1%}], {found.images} pictures")


if __name__ == "__main__":
    main()
