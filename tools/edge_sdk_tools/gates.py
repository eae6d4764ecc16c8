"""promise: what the steps of a build gave, and the manifest that follows from it."""

from __future__ import annotations

import datetime
from importlib.metadata import version

import cv2
import msgspec
import numpy as np
import onnxruntime as ort

import edge_sdk
from edge_sdk.bundle.manifest import BoardEstimate, Distillation, FileEntry, Manifest, Provenance, RuntimeRange, Variant
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk_tools.check.gate import CheckedModel
from edge_sdk_tools.datasets.split import ImageSplit
from edge_sdk_tools.distillation.step import Distilled
from edge_sdk_tools.evaluate.model import DIGEST_LENGTH, Subject
from edge_sdk_tools.graph.profile import extension_nodes
from edge_sdk_tools.prove.parity import Chain
from edge_sdk_tools.quantize.local_noise import LocalNoise
from edge_sdk_tools.quantize.simplified import Simplified
from edge_sdk_tools.search.choice import Choice
from edge_sdk_tools.search.search import Search
from edge_sdk_tools.search.uint8_input import InputTrial


class Steps(msgspec.Struct, frozen=True):
    """The results of a build's steps, each of which was checked against its gate."""

    spec: ModelSpec
    target: Target
    images: ImageSplit
    checked: CheckedModel
    fp32: Subject
    distilled: Distilled | None
    simplified: Simplified
    search: Search
    choice: Choice
    input: InputTrial
    chain: Chain
    noise: tuple[LocalNoise, ...]
    board: BoardEstimate | None = None

    @property
    def distillation(self) -> Distillation | None:
        """What the bundle says of its teacher; None where none is named."""
        return self.distilled.promise if self.distilled else None

    @property
    def latency_budget_ms(self) -> float:
        """Capture to outbox, of model.toml or else of the target."""
        return self.spec.budget.latency_ms or self.target.latency_budget_ms


def promise(
    steps: Steps,
    variants: tuple[Variant, ...],
    files: tuple[FileEntry, ...],
    runtimes: RuntimeRange,
    bundle_version: int,
) -> Manifest:
    """What a device needs to know, from what the steps gave.

    Args:
        steps: what was measured.
        variants: of the bundle, the one that runs in front.
        files: everything in the bundle.
        runtimes: in which golden was, or is about to be, replayed.
        bundle_version: grows from build to build.
    """
    spec, target, choice = steps.spec, steps.target, steps.choice
    return Manifest(
        name=spec.name,
        version=bundle_version,
        created_at=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        target=target.name,
        machine=target.machine,
        providers=tuple(target.providers),
        provider_options=target.provider_options,
        intra_op_num_threads=target.intra_op_num_threads,
        allow_spinning=target.allow_spinning,
        memory_mb=target.memory_mb,
        task=spec.task,
        decoder=spec.decoder,
        input=spec.input,
        thresholds=spec.thresholds,
        classification=spec.classification,
        detection=spec.detection,
        labels="labels.txt",
        variants=variants,
        opset=steps.checked.opset,
        onnxruntime=runtimes,
        operators=tuple(sorted({name for variant in variants for name in variant.operators})),
        fallback_reason=choice.fallback_reason,
        distillation=steps.distillation,
        latency_budget_ms=steps.latency_budget_ms,
        provenance=_provenance(steps),
        files=files,
    )


def _provenance(steps: Steps) -> Provenance:
    extensions = ("onnxruntime-extensions",) if extension_nodes(steps.checked.proto) else ()
    return Provenance(
        edge_sdk=edge_sdk.__version__,
        libraries={
            "numpy": np.__version__,
            "onnx": version("onnx"),
            "onnxruntime": ort.__version__,
            "opencv": cv2.__version__,
            **{name: version(name) for name in extensions},
        },
        source_sha256=steps.checked.sha256,
        recipe={**steps.choice.recipe.settings, "input": steps.input.text} if steps.choice.recipe else {},
        float_nodes=steps.choice.float_nodes,
        calibration_digests=tuple(i.sha256[:DIGEST_LENGTH] for i in steps.images.calibration.images),
    )
