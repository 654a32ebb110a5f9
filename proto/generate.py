"""Generate the message modules of PACKAGES from the .proto files: python proto/generate.py [DIRECTORY]."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).parent
SOURCE = PROTO.parent / "src"
PACKAGES = {
    "rota": "rota.wire.generated",
    "etcd": "rota.store.etcd.generated",
    "jobscheduler": "rota.gateway.generated",
}  # by folder of proto/

# The generator writes imports as if the folders of the .proto files were top-level packages.
IMPORT = re.compile(r"^(?:from (?!google\.)[\w.]+ )?import (\w+_pb2)\b", re.MULTILINE)
OWN_NAME = re.compile(r"(?<=DESCRIPTOR, ')[\w.]*?(\w+_pb2)(?=')")


def main() -> None:
    """Write the modules into src, or into the directory given as argument."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE
    for folder, package in PACKAGES.items():
        target = source / package.replace(".", "/")
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("*_pb2*"):
            old.unlink()
        (target / "__init__.py").write_text('"""Made by `make proto`; never edited by hand."""\n')
        with tempfile.TemporaryDirectory() as scratch:
            generate(folder, Path(scratch))
            for made in sorted(Path(scratch).rglob("*_pb2*")):
                (target / made.name).write_text(at_home(made.read_text(), package))


def generate(folder: str, scratch: Path) -> None:
    outputs = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
    sources = [str(path) for path in sorted((PROTO / folder).rglob("*.proto"))]
    if not sources:
        sys.exit(f"error: there are no .proto files below proto/{folder}")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *sources]
    if subprocess.run(protoc, check=False).returncode:
        sys.exit("error: the .proto files were refused; see above")


def at_home(text: str, package: str) -> str:
    return OWN_NAME.sub(rf"{package}.\1", IMPORT.sub(rf"from {package} import \1", text))


if __name__ == "__main__":
    main()
