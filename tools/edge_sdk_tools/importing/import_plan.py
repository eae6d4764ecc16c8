"""What every compared import begins and ends with: all that is cheap to check first, the file and its report last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target, load_target
from edge_sdk_tools.dataset import Skipped
from edge_sdk_tools.importing.comparison import OutputDifference
from edge_sdk_tools.importing.import_record import Origin, embed_record
from edge_sdk_tools.importing.import_report import ImportReport, make_report
from edge_sdk_tools.importing.model_file import load_destination, write_model
from edge_sdk_tools.importing.probe import Probe, make_probes, probe_images


class ImportPlan(msgspec.Struct, frozen=True, eq=False):
    """What is imported, where it goes, and what it is compared on.

    Attributes:
        source: as the user named it.
        spec: the model.toml, which names the file to write.
        target: whose ONNX Runtime limits the opset; None for any.
        probes: the inputs.
        skipped: files among the images that cannot be used.
    """

    source: str
    spec: ModelSpec
    target: Target | None
    probes: tuple[Probe, ...]
    skipped: tuple[Skipped, ...] = ()

    def limit_opset(self, preferred: int) -> int:
        """The preferred opset, or the target's highest where that is lower."""
        return min(preferred, self.target.max_opset) if self.target else preferred

    def finish(
        self,
        proto: onnx.ModelProto,
        origin: Origin,
        exporter: str,
        outputs: tuple[OutputDifference, ...],
        warnings: Sequence[str] = (),
    ) -> ImportReport:
        """Write the file, with a record of the comparison inside, and report.

        Args:
            proto: the model, compared already.
            origin: where it comes from.
            exporter: what made it.
            outputs: how far it is from the source.
            warnings: what the user should know.

        Raises:
            ModelError: the export gate refuses it.
            OutputError: the disk refuses.
        """
        images = sum(probe.is_image for probe in self.probes)
        embed_record(proto, origin, exporter, outputs, inputs=len(self.probes), images=images)
        replaced = write_model(proto, self.spec, self.target)
        return make_report(
            self.spec,
            proto,
            source=self.source,
            exporter=exporter,
            outputs=outputs,
            probes=self.probes,
            warnings=warnings,
            skipped=self.skipped,
            replaced=replaced,
        )


def plan_import(
    source: str | Path, model_toml: Path, target_name: str | None, images: Sequence[Path], *, batch: bool = False
) -> ImportPlan:
    """Read model.toml, target and folders of images; nothing is loaded or converted yet.

    Args:
        source: what is imported.
        model_toml: describes the input and names the file to write, which is another one than `source`.
        target_name: name or path of a target.
        images: folders of images to compare on; model.toml's calibration folder by default.
        batch: compare on two pictures at once too.

    Raises:
        EdgeError: of the family that says who can mend it.
    """
    spec = load_destination(model_toml, Path(source))
    target = load_target(target_name) if target_name else None
    found = probe_images(spec, images)
    return ImportPlan(str(source), spec, target, make_probes(spec.input, found, batch=batch), found.skipped)
