"""What a bundle promises."""

from edge_sdk.manifest.input_tensor import InputTensor, InputType, TensorColor, floats_of
from edge_sdk.manifest.manifest import SCHEMA_VERSION, FileEntry, Manifest, Provenance
from edge_sdk.manifest.measured import Agreement, BoardEstimate, Difference, Distillation, Quality
from edge_sdk.manifest.reading import MANIFEST_FILE, SIGNATURE_FILE, decode_manifest, encode_manifest, manifest_schema
from edge_sdk.manifest.variant import Golden, Precision, Variant
from edge_sdk.manifest.versions import RuntimeRange, parse_version

__all__ = [
    "MANIFEST_FILE",
    "SCHEMA_VERSION",
    "SIGNATURE_FILE",
    "Agreement",
    "BoardEstimate",
    "Difference",
    "Distillation",
    "FileEntry",
    "Golden",
    "InputTensor",
    "InputType",
    "Manifest",
    "Precision",
    "Provenance",
    "Quality",
    "RuntimeRange",
    "TensorColor",
    "Variant",
    "decode_manifest",
    "encode_manifest",
    "floats_of",
    "manifest_schema",
    "parse_version",
]
