"""Which files of which libraries browsers may have, and where they lie. A table.

Nothing outside the table is served; no library is ever imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from core.errors import NotFoundError

NODE_COMMAND: Final = "scripts/setup.sh pages"
VOICE_DETECTOR: Final = "silero"
VOICE_DETECTOR_PACKAGE: Final = "silero_vad"  # its files come with the worker's Python packages
VOICE_DETECTOR_COMMAND: Final = "scripts/setup.sh worker"

MSGPACK_MODULES: Final = (
    "index.mjs",
    "CachedKeyDecoder.mjs",
    "DecodeError.mjs",
    "Decoder.mjs",
    "Encoder.mjs",
    "ExtData.mjs",
    "ExtensionCodec.mjs",
    "context.mjs",
    "decode.mjs",
    "decodeAsync.mjs",
    "encode.mjs",
    "timestamp.mjs",
    "utils/int.mjs",
    "utils/prettyByte.mjs",
    "utils/stream.mjs",
    "utils/typedArrays.mjs",
    "utils/utf8.mjs",
)

CHINESE_PACKAGE: Final = "@fontsource-variable/noto-sans-sc"
CHINESE_SUBSETS: Final = (
    *(str(number) for number in (*range(4, 7), *range(21, 92), *range(97, 120))),
    "cyrillic",
    "latin",
    "latin-ext",
    "vietnamese",
)
"""Parts of the font by the characters they hold; its style sheet names them all."""

NODE_FILES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "uplot": {
            "uPlot.esm.js": "uplot/dist/uPlot.esm.js",
            "uPlot.min.css": "uplot/dist/uPlot.min.css",
        },
        "wavesurfer": {
            "wavesurfer.esm.js": "wavesurfer.js/dist/wavesurfer.esm.js",
            "regions.esm.js": "wavesurfer.js/dist/plugins/regions.esm.js",
            "timeline.esm.js": "wavesurfer.js/dist/plugins/timeline.esm.js",
            "hover.esm.js": "wavesurfer.js/dist/plugins/hover.esm.js",
            "zoom.esm.js": "wavesurfer.js/dist/plugins/zoom.esm.js",
        },
        "onnxruntime": {
            "ort.wasm.min.mjs": "onnxruntime-web/dist/ort.wasm.min.mjs",
            "ort-wasm-simd-threaded.mjs": "onnxruntime-web/dist/ort-wasm-simd-threaded.mjs",
            "ort-wasm-simd-threaded.wasm": "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
        },
        "noto-sans-sc": {"index.css": f"{CHINESE_PACKAGE}/index.css"}
        | {
            f"files/noto-sans-sc-{subset}-wght-normal.woff2": (
                f"{CHINESE_PACKAGE}/files/noto-sans-sc-{subset}-wght-normal.woff2"
            )
            for subset in CHINESE_SUBSETS
        },
        "marked": {"marked.esm.js": "marked/lib/marked.esm.js"},
        "msgpack": {name: f"@msgpack/msgpack/dist.esm/{name}" for name in MSGPACK_MODULES},
    }
)
"""By library and name in the address: the path below `node_modules`."""

VOICE_DETECTOR_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {"silero_vad.onnx": "data/silero_vad.onnx"}
)
"""The same below the Python package."""

LIBRARIES: Final = (*NODE_FILES, VOICE_DETECTOR)


class VendorFiles:
    """The libraries of one installation."""

    def __init__(self, node_modules: Path) -> None:
        """Take where npm has put them.

        Args:
            node_modules: The folder; it need not be there.
        """
        self._node_modules = node_modules
        self._voice_detector = _package_folder(VOICE_DETECTOR_PACKAGE)

    def find(self, library: str, name: str) -> Path:
        """Return a file. Blocks on the disk.

        Raises:
            NotFoundError: It is in no table, or not installed; then the text says what to run.
        """
        path = self._files(library).get(name)
        if path is None:
            raise NotFoundError("There is no such library file.")
        if not path.is_file():
            command = VOICE_DETECTOR_COMMAND if library == VOICE_DETECTOR else NODE_COMMAND
            raise NotFoundError(
                f"The library {library} is not installed on this server. "
                f"Run {command} there and reload this page."
            )
        return path

    def installed(self) -> dict[str, bool]:
        """Say of each library whether all its files are there. Blocks on the disk."""
        return {
            library: all(path.is_file() for path in self._files(library).values())
            for library in LIBRARIES
        }

    def _files(self, library: str) -> dict[str, Path]:
        if library == VOICE_DETECTOR:
            root, files = self._voice_detector, VOICE_DETECTOR_FILES
        else:
            root, files = self._node_modules, NODE_FILES.get(library, {})
        return {name: root / path for name, path in files.items()}


def _package_folder(package: str) -> Path:
    """Return where a Python package lies, a folder that is not there if nowhere."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders))) if folders else Path(package)
