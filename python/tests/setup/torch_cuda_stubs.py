"""Makes a torch wheel built for CUDA importable without the vendor's libraries. Needs gcc and binutils.

Libraries that torch names but that are not installed become stubs whose functions all answer 1, an error. Versions of
symbols are kept, since the loader checks them.
"""

import collections
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

VENDOR = r"(cublas|cublasLt|cudnn|cusparse|cusparseLt|cufft|cufile|curand|cusolver|nccl|nvrtc|nvshmem_host|nvJitLink)"
LIBRARY = re.compile(rf"^lib{VENDOR}\.so")
FUNCTION = re.compile(r"^(cublas|cudnn|cusparse|cufft|cuFile|curand|cusolver|nccl|pnccl|nvrtc|nvJitLink|nvshmem)")
REAL_BYTES_MIN = 4_000_000
"""A library of this size is the vendor's own."""


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


Versions = dict[str, dict[str, set[str]]]


def wanted(libraries: list[Path]) -> tuple[set[str], Versions, set[str]]:
    """Libraries needed; per library and version the functions; functions without a version."""
    needed: set[str] = set()
    versions: Versions = collections.defaultdict(lambda: collections.defaultdict(set))
    plain: set[str] = set()
    for library in libraries:
        names = re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", str(library)))
        needed |= {name for name in names if LIBRARY.match(name)}
        current, owner = "", {}
        for line in run("readelf", "-V", "-W", str(library)).splitlines():
            if match := re.search(r"File: (\S+)\s+Cnt", line):
                current = match[1]
            elif (match := re.search(r"Name: (\S+)\s+Flags", line)) and current:
                owner[match[1]] = current
        undefined = run("nm", "-D", "--undefined-only", str(library))
        for symbol in re.findall(r"^\s+U (\S+)$", undefined, re.M):
            name, _, version = symbol.partition("@")
            version = version.strip("@")
            if version and LIBRARY.match(owner.get(version, "")):
                versions[owner[version]][version].add(name)
            elif not version and FUNCTION.match(name):
                plain.add(name)
    return needed, versions, plain


def build(library: Path, functions: set[str], versions: dict[str, set[str]], scratch: Path) -> None:
    source, script = scratch / "stub.c", scratch / "versions.map"
    source.write_text("\n".join(f"int {name}(void){{return 1;}}" for name in sorted(functions)))
    flags = ["-shared", "-fPIC", "-w", "-fno-builtin", "-O1", f"-Wl,-soname,{library.name}"]
    if versions:
        nodes = (f"{v} {{ global: {' '.join(f'{n};' for n in sorted(names))} }};" for v, names in versions.items())
        script.write_text("\n".join(nodes))
        flags.append(f"-Wl,--version-script={script}")
    run("gcc", *flags, "-o", str(library), str(source))
    print("stub", library.name, len(functions), "symbols")


def main() -> None:
    packages = Path(sysconfig.get_path("purelib"))
    folder = packages / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    needed, versions, plain = wanted(sorted((packages / "torch/lib").glob("*.so*")))
    with tempfile.TemporaryDirectory() as scratch:
        for name in sorted(needed):
            library = folder / name
            if library.exists() and library.stat().st_size > REAL_BYTES_MIN:
                continue
            functions = plain.union(*versions[name].values())
            build(library, functions, versions[name], Path(scratch))


if __name__ == "__main__":
    main()
