"""Generate ``wire/v1`` from ``protos/``; with ``--check`` only compare, and fail if they differ.

``protos/released.txt`` lists every field, enum value and method that a released client or store may rely on: removing,
renaming or renumbering one fails every run. ``--release`` adds the new ones.
"""

import argparse
import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
TARGET = Path("onceward/wire/v1")
RELEASED = PROTOS / "released.txt"
INIT = '"""Generated from ``protos/`` by ``scripts/protos.py``. Never edited."""\n'


def generate(out: Path) -> descriptor_pb2.FileDescriptorSet:
    """Write the stubs below ``out``; return the compiled descriptors. Raises SystemExit with protoc's code."""
    described = out / "descriptors.bin"
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    (out / TARGET).mkdir(parents=True, exist_ok=True)
    plugins = Path(sys.executable).parent
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            f"--mypy_out=quiet:{out}",
            f"--mypy_grpc_out=quiet:{out}",
            f"--descriptor_set_out={described}",
            *sources,
        ]
    )
    if code != 0:
        raise SystemExit(code)
    (out / TARGET / "__init__.py").write_text(INIT, encoding="utf-8")
    compiled = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes())
    described.unlink()
    return compiled


def promises(compiled: descriptor_pb2.FileDescriptorSet) -> set[str]:
    """Return one line per element of the wire format that must not change."""
    lines: set[str] = set()

    def of_message(prefix: str, message: descriptor_pb2.DescriptorProto) -> None:
        name = f"{prefix}.{message.name}"
        for field in message.field:
            kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
            label = descriptor_pb2.FieldDescriptorProto.Label.Name(field.label)
            lines.add(f"field {name}.{field.name} = {field.number} {label} {kind} {field.type_name}".rstrip())
        for nested in message.nested_type:
            of_message(name, nested)

    for file in compiled.file:
        for message in file.message_type:
            of_message(file.package, message)
        for enum in file.enum_type:
            lines |= {f"value {file.package}.{enum.name}.{value.name} = {value.number}" for value in enum.value}
        for service in file.service:
            for method in service.method:
                stream = "stream " if method.server_streaming else ""
                lines.add(
                    f"rpc {file.package}.{service.name}.{method.name} {method.input_type} {stream}{method.output_type}"
                )
    return lines


def difference(generated: Path, kept: Path) -> list[str]:
    """Return the names of files that differ or exist on only one side."""
    names = {path.name for side in (generated, kept) for path in side.iterdir() if path.is_file()}
    return sorted(
        name
        for name in names
        if not (generated / name).is_file()
        or not (kept / name).is_file()
        or not filecmp.cmp(generated / name, kept / name, shallow=False)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something is out of date")
    parser.add_argument("--release", action="store_true", help="promise to keep what is on the wire now")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        compiled = generate(Path(scratch))
        now = promises(compiled)
        released = set(RELEASED.read_text(encoding="utf-8").splitlines()) if RELEASED.exists() else set()
        broken = sorted(released - now)
        if broken:
            print("These were released and are gone or changed; released clients would misread them:", file=sys.stderr)
            print("\n".join(f"  {line}" for line in broken), file=sys.stderr)
            return 1
        if options.release:
            RELEASED.write_text("\n".join(sorted(released | now)) + "\n", encoding="utf-8")
        stale = difference(Path(scratch) / TARGET, ROOT / TARGET)
        if options.check:
            if stale:
                print(f"{TARGET} differs from protos/ ({', '.join(stale)}): run make protos", file=sys.stderr)
            return 1 if stale else 0
        for name in stale:
            made, kept = Path(scratch) / TARGET / name, ROOT / TARGET / name
            if made.is_file():
                kept.write_bytes(made.read_bytes())
            else:
                kept.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
