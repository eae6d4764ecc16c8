"""What a bundle promises."""

from edge_sdk.manifest.input_tensor import InputTensor, InputType, as_taken
from edge_sdk.manifest.manifest import SCHEMA_VERSION, FileEntry, Manifest, Provenance
from edge_sdk.manifest.measured import Agreement, BoardEstimate, Distillation, Quality
from edge_sdk.manifest.reading import MANIFEST_FILE, SIGNATURE_FILE, decode_manifest, encode_manifest, manifest_schema
from edge_sdk.manifest.variant import Golden, Precision, Variant
from edge_sdk.manifest.versions import RuntimeRange, parse_version

__all__ = [
    "MANIFEST_FILE",
    "SCHEMA_VERSION",
    "SIGNATURE_FILE",
    "Agreement",
    "BoardEstimate",
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
    "Variant",
    "as_taken",
    "decode_manifest",
    "encode_manifest",
    "manifest_schema",
    "parse_version",
]
