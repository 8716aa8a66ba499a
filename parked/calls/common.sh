# For bash on the GPU machine, in the root of the tree: COMMIT=$(git rev-parse HEAD) bash parked/calls/1.sh
# Wheels in .gpu/whl: liger-kernel 0.8.5; in .gpu/ao: torchao 0.18.0 (for 3.sh only). Both are carried, never tracked.
export PYTHONPATH=$PWD/src:/tmp/site TORCHINDUCTOR_CACHE_DIR=/tmp/ind TRITON_CACHE_DIR=/tmp/tri GPUGUIDE_RECORDS= PYTHONUNBUFFERED=1
export TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=1
install() { python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$1" "${@:2}" || exit; }
install /tmp/site .gpu/whl/*.whl
mkdir -p /tmp/log /tmp/ready /tmp/records
T0=$(date +%s)
say() { echo "[$(( $(date +%s) - T0 ))] $*"; }
pt() { python3 -m pytest -m gpu -q -o addopts= --import-mode=importlib -p no:cacheprovider --tb=short "$@"; }
# bench NAME ...: each in a folder of its own, since one folder allows one run
bench() {
  local name
  for name in "$@"; do
    python3 -c "import gpuguide.cli as c; c.app()" bench run --commit "$COMMIT" --out "/tmp/records/$name" "$name" > "/tmp/log/bench-$name.log" 2>&1
    say "$name rc=$?"; grep -v skipped "/tmp/log/bench-$name.log" | tail -4
  done
}
packed() { tar czf "$OUT/.part" -C /tmp records log && mv "$OUT/.part" "$OUT/records.tgz"; }
(while sleep 15; do packed 2>/dev/null; done) & PACKER=$!
finish() { kill $PACKER; packed; say end; }
