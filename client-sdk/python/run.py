#!/usr/bin/env python3
"""Publishes and fetches with nothing but the .proto files and grpcio; asks every node what it serves.

usage: run.py [--venv DIR] [--topic TOPIC] OBSERVER...

Makes a virtual environment (kept in DIR if given, else temporary), installs grpcio, its tools, its reflection and
health clients and protobuf from PyPI, generates the stubs from ../../proto/proto, and runs roundtrip.py and services.py
against a cluster that is already running.
Exit status: 0 all checks passed, 1 a check failed, 2 usage, 3 the environment could not be made.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import venv

HERE = pathlib.Path(__file__).resolve().parent
PROTOS = HERE.parent.parent / "proto" / "proto"
PACKAGES = [
    "grpcio>=1.62,<2",
    "grpcio-tools>=1.62,<2",
    "grpcio-reflection>=1.62,<2",
    "grpcio-health-checking>=1.62,<2",
    "protobuf>=4.25,<8",
]


def environment(folder: pathlib.Path) -> pathlib.Path:
    """A Python with the packages; made once."""
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    wanted = "\n".join(PACKAGES)
    # One that was made for other packages is made anew.
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
        subprocess.run([*install, *PACKAGES], check=True)
        ready.write_text(wanted)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=pathlib.Path, help="keep the virtual environment here")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("observers", nargs="+", metavar="OBSERVER", help="host:port")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quorate-python-") as scratch:
        stubs = pathlib.Path(scratch) / "stubs"
        stubs.mkdir()
        try:
            python = environment(args.venv.resolve() if args.venv else pathlib.Path(scratch) / "venv")
            files = sorted(str(path) for path in (PROTOS / "quorate" / "v1").glob("*.proto"))
            generate = [python, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--python_out={stubs}"]
            subprocess.run([*generate, f"--grpc_python_out={stubs}", *files], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"run.py: the environment could not be made: {error}", file=sys.stderr)
            return 3
        scripts = [[HERE / "roundtrip.py", "--topic", args.topic], [HERE / "services.py"]]
        for script, *options in scripts:
            run = [python, script, "--stubs", stubs, *options, *args.observers]
            status = subprocess.run(run).returncode
            if status != 0:
                return status
        return 0


if __name__ == "__main__":
    sys.exit(main())
