"""Describe an ONNX file: the model.toml and the labels that `edge-sdk init` writes.

What counts, in this order: what the caller says; the metadata that the exporter wrote (an import of this SDK: all keys;
Ultralytics: names, task, size); the shapes of input and outputs, by which the table of decoders recognises a family;
and how models of that family are usually trained. The last is guessed, and the model.toml says so beside each such
line. A file that no decoder reads is refused with what it shows, and never described as something else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.errors import EdgeError, ModelError, OutputError, UsageError, one_line
from edge_sdk.core.toml import shown
from edge_sdk.tasks.decoders import TABLE, make_stage
from edge_sdk.tasks.outputs import Decoder
from edge_sdk.tasks.spec import TRAITS, ClassificationSpec, DetectionSpec, Task, TaskSpec, Thresholds
from edge_sdk_tools.check.gate import examine_as_declared
from edge_sdk_tools.check.labels import ULTRALYTICS_TASKS, literal_in, names_in, resemblance
from edge_sdk_tools.check.report import CheckReport, show_shape
from edge_sdk_tools.check.sandbox import Examined
from edge_sdk_tools.check.shapes import adopted
from edge_sdk_tools.datasets.class_names import LISTS, read_labels
from edge_sdk_tools.importers.plan import DescribedModel, described_in
from edge_sdk_tools.packages import last_words, run_program

_USUAL_LABELS = {
    ("detection", 20): ("voc20", "Pascal VOC"),
    ("detection", 80): ("coco80", "COCO"),
    ("detection", 90): ("coco90", "COCO by its own ids"),
    ("detection", 91): ("coco91", "COCO by its own ids, after a background"),
    ("classification", 1000): ("imagenet1k", "ImageNet"),
    ("classification", 1001): ("imagenet1k", "ImageNet after a background"),
}
"""The list of labels that are guessed by task and number of classes, and of what in words."""
_LABELS_FILE = "labels.txt"
_IMAGENET_AND_BACKGROUND = 1001
_INPUT_KEYS = ("resize", "crop_fraction", "pad_anchor", "color", "mean", "std")
_OF_TENSORFLOW = {".tflite": "--tflite", ".keras": "--keras", ".h5": "--keras"}  # tf2onnx's option by a file's ending


class Description(msgspec.Struct, frozen=True):
    """What a model.toml says of a model, and where that comes from.

    The labels of `spec` are a list by its name or a file to be written. `read` is what the file itself says, in lines
    for people, `guessed` has for keys of model.toml why their values were chosen.
    """

    spec: ModelSpec
    labels: tuple[str, ...]
    read: tuple[str, ...]
    guessed: dict[str, str]
    examined: Examined

    def guesses(self) -> list[str]:
        """Return what was guessed in lines for people, one for each reason."""
        return [
            f"guessed {', '.join(key for key, its in self.guessed.items() if its == why)}: {why}"
            for why in dict.fromkeys(self.guessed.values())
        ]


class _Reading(TaskSpec, frozen=True, kw_only=True):
    """One decoder that reads all outputs, for so many classes."""

    entry: Decoder
    class_count: int | None = None
    is_shown: bool | None = None
    others: tuple[str, ...] = ()


def describe(
    model: Path,
    *,
    task: str | None = None,
    decoder: str | None = None,
    labels: Path | None = None,
    size_wh: tuple[int, int] | None = None,
) -> Description:
    """Describe an ONNX file, or a checkpoint of Ultralytics; what is given counts more than what the file says.

    A UsageError has the command that makes an .onnx of another file. A ModelError says that it cannot be read, that its
    metadata contradict what is given or its shapes, or that no decoder reads it.
    """
    model = _as_onnx(model)
    examined, input_spec, is_free = _looked_at(model, size_wh)
    report = examined.report
    for unfit in report.of("error"):
        raise ModelError(f"{model}: {unfit.line}")
    metadata = report.metadata
    known = described_in(metadata)
    if known is not None and not (task or decoder or size_wh):
        return _as_imported(model, known, labels)
    wanted = _wanted_task(model, report, task)
    names = names_in(metadata)
    lines = len(read_labels(labels)) if labels else 0
    reading = _recognised(model, report, input_spec, wanted, decoder, len(names), lines)
    guessed: dict[str, str] = {}
    if decoder is None and _wanted_task(model, report, None) is None:
        others = f", which {', '.join(reading.others)} would read too" if reading.others else ""
        guessed["decoder"] = f"by the shapes of its outputs{'' if reading.is_shown else ' alone'}{others}"
    input_spec = _usual(input_spec, reading, report, guessed)
    if reading.thresholds != Thresholds():
        why = f"as {reading.decoder} models are mostly used; choose it by what `edge-sdk evaluate` counts"
        guessed.update(dict.fromkeys(("confidence", "iou"), why))
    for key in ("scores", "background_class", "anchors"):
        if getattr(reading.detection, key) != getattr(DetectionSpec(), key):
            guessed[key] = "by the names and operators of its outputs"
    if is_free and size_wh is None and _image_size(metadata) is None:
        guessed["size_wh"] = "the file takes any size"
    if reading.entry.task == "classification" and reading.class_count == _IMAGENET_AND_BACKGROUND:
        guessed["background_class"] = "1001 classes are mostly those of ImageNet after a background"
        reading = msgspec.structs.replace(reading, classification=ClassificationSpec(background_class=True))
        input_spec = msgspec.structs.replace(input_spec, mean=(127.5,) * 3, std=(127.5,) * 3)  # as TensorFlow trains
    chosen = _labels(model, reading, names, labels, guessed)
    spec = _spec_of(model, reading, input_spec, chosen)
    return Description(spec, chosen, tuple(_read(report, metadata, names)), guessed, examined)


def _as_imported(model: Path, known: DescribedModel, labels: Path | None) -> Description:
    """Describe a file in which an import left what its model.toml said; raise ModelError if it does not fit."""
    chosen = tuple(read_labels(labels)) if labels else tuple(map(one_line, known.labels))
    try:
        spec = _spec_of(model, known, known.input, chosen)
        examined = _examined(model, known.input)
        if adopted(examined.report.declared or (), known.input) != known.input:
            raise ModelError(f"input.size_wh is {known.input.size_wh}, the file's input {examined.report.declared}")
        for error in examined.report.of("error"):
            raise ModelError(error.what)
        make_stage(spec, chosen, [output.shape or () for output in examined.report.outputs])
    except (EdgeError, ValueError) as cause:
        raise ModelError(f"{model}: its metadata describe another model: {cause}; give --decoder") from cause
    return Description(spec, chosen, ("imported by edge-sdk, which left the keys of this file in it",), {}, examined)


def _spec_of(model: Path, reading: TaskSpec, given: InputSpec, labels: tuple[str, ...]) -> ModelSpec:
    return ModelSpec(
        model=str(model.absolute()),
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", model.stem).lstrip("._-")[:100] or "model",
        labels=next((name for name, path in LISTS.items() if read_labels(path) == labels), _LABELS_FILE),
        **{key: getattr(reading, key) for key in TaskSpec.__struct_fields__ if key != "input"},
        input=given,
    )


def write_description(description: Description, folder: Path) -> list[Path]:
    """Write model.toml into a folder, and labels.txt where the labels are no list that has a name; return both paths.

    The model's path becomes relative to the folder. A UsageError says that one of them exists.
    """
    spec = description.spec
    texts = {"model.toml": ""} | ({} if spec.labels in LISTS else {spec.labels: "\n".join(description.labels) + "\n"})
    for name in texts:
        if (folder / name).exists():
            raise UsageError(f"{folder / name}: exists and is kept; move it away, or choose another folder with -o")
    relative = msgspec.structs.replace(spec, model=os.path.relpath(spec.model, folder.absolute()))
    texts["model.toml"] = to_toml(relative, description.read, description.guessed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as cause:
        for name in texts:
            with contextlib.suppress(OSError):
                (folder / name).unlink(missing_ok=True)
        raise OutputError(f"{folder}: cannot be written to: {cause.strerror}; nothing was left there") from cause
    return [folder / name for name in texts]


def to_toml(spec: ModelSpec, read: Sequence[str] = (), guessed: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text of a model.toml, with what was `read` above it, and a comment beside each guess."""
    lines = [f"# {line}" for line in read]
    lines += [_line(key, getattr(spec, key), guessed) for key in ("model", "name", "task", "decoder", "labels")]
    lines += ["", "[input]"]
    plain = InputSpec(size_wh=spec.input.size_wh)
    for key in ("size_wh", *_INPUT_KEYS, "layout"):
        value = getattr(spec.input, key)
        if key in ("size_wh", "color") or key in guessed or value != getattr(plain, key):
            lines.append(_line(key, value, guessed))
    for section in TaskSpec.__struct_fields__:
        keys = getattr(spec, section)
        if isinstance(keys, msgspec.Struct) and keys is not spec.input:
            usual = msgspec.structs.asdict(type(keys)())
            said = [(key, value) for key, value in msgspec.structs.asdict(keys).items() if value != usual[key]]
            lines += ["", f"[{section}]", *(_line(key, value, guessed) for key, value in said)] if said else []
    lines += ["", "[data]"]
    lines += ['# calibration = "images"      # a hundred images or more like those that the camera will see', ""]
    return "\n".join(lines)


def _line(key: str, value: Any, guessed: Mapping[str, str]) -> str:
    text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text:<34}# guessed: {guessed[key]}" if key in guessed else text


def _as_onnx(model: Path) -> Path:
    """Return the .onnx of a model: a checkpoint of Ultralytics is exported where its program is installed."""
    kind, made = model.suffix.lower(), model.with_suffix(".onnx")
    then = f"then edge-sdk init {made}"
    if kind == ".pt":  # to load it is to run the code in it
        command, program = ["yolo", "export", f"model={model}", "format=onnx"], shutil.which("yolo")
        if made.exists():
            raise UsageError(f"{made}: exists and is kept; edge-sdk init {made} describes it")
        if program is None or not model.is_file():
            how = f"with Ultralytics: {' '.join(command)}, {then}"
            raise UsageError(f"{model}: a PyTorch checkpoint, expected .onnx; {how}")
        done = run_program([program, *command[1:]])
        if done.returncode or not made.exists():
            raise ModelError(f"{model}: `{' '.join(command)}` failed: {last_words(done.stderr or done.stdout)}")
        return made
    option = "--saved-model" if (model / "saved_model.pb").exists() else _OF_TENSORFLOW.get(kind)
    if option is not None:
        line = f"python -m tf2onnx.convert {option} {model} --opset 17 --output {made}"
        raise UsageError(f"{model}: a model of TensorFlow, expected .onnx; with tf2onnx: {line}, {then}")
    if kind != ".onnx":
        raise UsageError(f"{model}: expected an .onnx file; docs/importing.md says how others become one")
    if not model.exists():
        raise UsageError(f"{model}: no such file")
    return model


def _looked_at(model: Path, size_wh: tuple[int, int] | None) -> tuple[Examined, InputSpec, bool]:
    """Examine the file at the size that it or the caller says; also tell whether its own size is free."""
    side = TRAITS["detection"].side_px
    examined = _examined(model, InputSpec(size_wh=size_wh or (side, side)))
    declared = examined.report.declared
    if declared is None or len(declared) != 4:
        why = next((error.what for error in examined.report.of("error")), "it has no image as its one input")
        raise ModelError(f"{model}: {why}; `edge-sdk init` describes models with one image as input")
    given = adopted(declared, InputSpec(size_wh=size_wh or (side, side)))
    if size_wh and given.size_wh != size_wh:
        width, height = given.size_wh
        raise ModelError(f"{model}: its input is {width}x{height}, expected {size_wh[0]}x{size_wh[1]} as --size says")
    is_free = sum(isinstance(length, int) for length in declared[1:]) < 3
    if is_free and size_wh is None:
        is_one_row = [len(output.shape or ()) for output in examined.report.outputs] == [2]
        task = _wanted_task(model, examined.report, None) or ("classification" if is_one_row else "detection")
        usual = _image_size(examined.report.metadata) or (TRAITS[task].side_px,) * 2
        resized = adopted(declared, msgspec.structs.replace(given, size_wh=usual))  # a side may be fixed
        if resized != given:
            given = resized
            examined = _examined(model, given)
    return examined, given, is_free


def _examined(model: Path, given: InputSpec) -> Examined:
    file, labels = str(model), _LABELS_FILE
    spec = ModelSpec(model=file, name="model", task="classification", decoder="logits", labels=labels, input=given)
    examined = examine_as_declared(spec)
    for error in examined.report.of("error"):
        if error.rule == "file":
            raise ModelError(error.line)
    return examined


def _image_size(metadata: dict[str, str]) -> tuple[int, int] | None:
    """Return width and height from Ultralytics' `imgsz`, which is [height, width]."""
    sides = literal_in(metadata.get("imgsz", ""))
    if isinstance(sides, list) and len(sides) == 2 and all(isinstance(s, int) and 8 <= s <= 8192 for s in sides):
        return sides[1], sides[0]
    return None


def _keypoints(metadata: dict[str, str]) -> tuple[int, int] | None:
    """Return how many points an object has, and how many values a point, as Ultralytics writes `kpt_shape`."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert({"keypoints": literal_in(metadata.get("kpt_shape", ""))}, DetectionSpec).keypoints
    return None


def _wanted_task(model: Path, report: CheckReport, task: str | None) -> Task | None:
    said = report.metadata.get("task")
    # A dictionary beside one row of scores, not a row for each place in the picture, holds the names of classes.
    is_text = "character" in report.metadata and any(len(output.shape or ()) > 2 for output in report.outputs)
    known = "text" if is_text else ULTRALYTICS_TASKS.get(said or "")
    if task is not None and task not in get_args(Task):
        raise UsageError(f"--task {task}: expected one of {', '.join(get_args(Task))}")
    if said == "pose" and _keypoints(report.metadata) is None:
        points = shown(report.metadata.get("kpt_shape", ""))
        what = f"its metadata say task pose and kpt_shape {points}"
        raise ModelError(f"{model}: {what}, expected [points, 2 or 3]; export it again")
    if known and task and known != task:
        what = f"its metadata say {known} (task {said or known})"
        raise ModelError(f"{model}: {what}, and --task says {task}; leave one out")
    return next((one for one in get_args(Task) if one == (task or known)), None)


def _recognised(
    model: Path, report: CheckReport, given: InputSpec, task: Task | None, decoder: str | None, names: int, lines: int
) -> _Reading:
    """Return the first decoder that reads the outputs, for so many names in the metadata, else lines that are given."""
    shapes = [output.shape or () for output in report.outputs]
    said = report.metadata.get("task")
    if decoder is not None and decoder not in {entry.name for entry in TABLE}:
        raise UsageError(f"--decoder {decoder}: expected one of {', '.join(dict.fromkeys(e.name for e in TABLE))}")
    if said and said not in ULTRALYTICS_TASKS and task is None and decoder is None:
        raise ModelError(
            f"{model}: its metadata say task {one_line(said)[:40]}, expected one of {', '.join(ULTRALYTICS_TASKS)}; if "
            f"outputs {', '.join(map(show_shape, shapes))} are one of these all the same, give --task or --decoder"
        )
    is_any = ULTRALYTICS_TASKS.get(said or "") != "detection"
    entries = [entry for entry in TABLE if decoder in (None, entry.name) and (is_any or entry.said == said)]
    if decoder is not None and not entries:
        what = f"its metadata say task {said}, which --decoder {decoder} does not read"
        raise ModelError(f"{model}: {what}; leave it out")
    fitting_task = [entry for entry in entries if task in (None, entry.task)]
    readings = [reading for entry in fitting_task for reading in _readings(entry, given, report)]
    # What names and operators speak for stands first; what they speak against counts only where it is asked for.
    if decoder is None:
        readings = [r for r in readings if r.is_shown is not False]
    vague = dict.fromkeys(r.task for r in readings if r.entry.is_vague and r.is_shown is None)
    if decoder is None and task is None:
        readings = [r for r in readings if not r.entry.is_vague or r.is_shown]
    readings.sort(key=lambda reading: reading.is_shown is not True)
    if re.search("rt-?detr", report.metadata.get("description", ""), re.IGNORECASE):
        readings = [r for r in readings if r.decoder.startswith("detr")]  # rows look like those of other detectors
    listed = ", ".join(show_shape(shape) for shape in shapes)
    if not readings:
        raise ModelError(
            f"{model}: outputs {listed} are those of no decoder{f' for {task}' if task else ''} at "
            f"{given.size_wh[0]}x{given.size_wh[1]}{resemblance(report.outputs, given.size_wh)}; "
            + (f"if it is one for {' or '.join(vague)}, say so with --task; " if vague and not task else "")
            + "docs/model-toml.md has what each decoder reads: write the model.toml by hand"
        )
    if not names:
        readings.sort(key=lambda reading: lines > 0 and reading.class_count not in (None, lines))
        others = tuple(dict.fromkeys(r.decoder for r in readings if r.decoder != readings[0].decoder))
        return msgspec.structs.replace(readings[0], others=others)
    fitting = [reading for reading in readings if reading.class_count in (None, names)]
    if not fitting:
        raise ModelError(
            f"{model}: its metadata name {names} classes, and its outputs {listed} have {readings[0].class_count} for "
            f"{readings[0].decoder}; give --decoder, or export it again"
        )
    return fitting[0]


def _readings(entry: Decoder, given: InputSpec, report: CheckReport) -> Iterator[_Reading]:
    """Yield how an entry of the table reads exactly these outputs, for each number of classes that they may have."""
    outputs = report.outputs
    detection = entry.section(outputs)
    if entry.said == "pose":
        detection = msgspec.structs.replace(detection, keypoints=_keypoints(report.metadata))
    limits = entry.usual_thresholds
    reading = _Reading(
        task=entry.task, decoder=entry.name, input=given, entry=entry, detection=detection, thresholds=limits
    )
    try:
        entry.check(detection)
    except ValueError:  # it needs a key that no file shows
        return
    for count, layout, places in entry.readings(reading, [output.shape or () for output in outputs]):
        try:
            entry.make(reading, count or 1, layout)
        except ModelError:  # such shapes cannot be read after all
            continue
        are_ids = TRAITS[entry.task].has_class_map and count is None
        if not (are_ids and "float" in (outputs[0].type or "")):
            is_shown = entry.is_shown([outputs[place] for place in places])
            yield msgspec.structs.replace(reading, class_count=count, is_shown=is_shown)


def _usual(given: InputSpec, reading: _Reading, report: CheckReport, guessed: dict[str, str]) -> InputSpec:
    usual = reading.entry.usual_input if given.color != "GRAY" else {}
    if any(found.rule == "input" for found in report.findings):  # it takes pixels as they are
        usual = {key: value for key, value in usual.items() if key not in ("mean", "std")}
    why = f"as {reading.decoder} models are usually trained"
    if usual and report.metadata.get("description", "").startswith("Ultralytics"):
        of_whole = {"resize": "center_crop"} if TRAITS[reading.task].is_of_whole_picture else {}
        usual = {**of_whole, **{key: value for key, value in usual.items() if key == "resize"}, "std": (255.0,) * 3}
        why = "as Ultralytics trains"
    elif not usual:
        guessed.update(dict.fromkeys(("mean", "std"), "0-255 as they are, unless it was trained otherwise"))
    guessed.update(dict.fromkeys(["color", *usual], why) if given.color != "GRAY" else {})
    if reading.decoder == "yolox":
        guessed["decoder"] = 'by the shapes of its outputs; a YOLOX that decodes its boxes itself needs "yolov5"'
    return msgspec.structs.replace(given, **usual)


def _labels(
    model: Path, reading: _Reading, names: tuple[str, ...], given: Path | None, guessed: dict[str, str]
) -> tuple[str, ...]:
    count = reading.class_count
    if given is not None:
        labels = _beside_background(read_labels(given), reading)
        if count not in (None, len(labels)):
            raise ModelError(f"{given}: has {len(labels)} lines, expected one for each class of {model}: {count}")
        return labels
    if names:
        return names
    usual = reading.entry.usual_labels
    if usual and count in (None, len(usual)):
        guessed["labels"] = f"as those of {reading.decoder} models"
        return usual
    count = count or reading.entry.usual_count
    if (reading.task, count) in _USUAL_LABELS:
        name, of = _USUAL_LABELS[reading.task, count]
        guessed["labels"] = f"{count} classes are mostly those of {of}"
        return _beside_background(read_labels(LISTS[name]), reading)
    guessed["labels"] = "the file does not name its classes"
    if reading.task == "classification" and reading.decoder == "logits":
        guessed["labels"] += "; if they are the numbers of a vector, give --task embedding"
    has_background = reading.classification.background_class
    return _beside_background([f"class_{number}" for number in range(count - has_background)], reading)


def _beside_background(labels: Sequence[str], reading: _Reading) -> tuple[str, ...]:
    """Put the label of a classifier's background before the others, where it is missing."""
    is_missing = reading.classification.background_class and len(labels) + 1 == reading.class_count
    return ("background", *labels) if is_missing else tuple(labels)


def _read(report: CheckReport, metadata: dict[str, str], names: tuple[str, ...]) -> Iterator[str]:
    if report.producer:
        yield f"written by {report.producer}"
    if "description" in metadata:
        yield one_line(metadata["description"])[:120].strip()
    if "names" in metadata and not names:
        yield "names that are no list of classes; they are ignored"
    if "character" in metadata:
        yield f"a dictionary of {len(names)} entries"
    if metadata.get("task"):
        yield f"task {one_line(metadata['task'])[:40]}, {len(names)} names"
    yield f"outputs {', '.join(show_shape(output.shape) for output in report.outputs)}"
