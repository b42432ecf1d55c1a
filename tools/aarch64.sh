#!/bin/sh
# Compile the kernels for AArch64 on another Linux machine and run tests there by emulation.
#
#     tools/aarch64.sh -m compiled tests/kernels      # any arguments of pytest
#
# Needed, on Debian or Ubuntu: gcc-aarch64-linux-gnu qemu-user-static debootstrap, and $PYTHON
# (default: python3), a Python 3.11 with cython, numpy, setuptools and pip. The first run must be
# root's: debootstrap downloads Debian's Python 3.11 for AArch64, which is unpacked, not installed.
# Everything is kept in build/aarch64. QEMU_CPU=cortex-a53 emulates a processor that has the level
# neon alone; by default all levels run.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
dir=$here/build/aarch64
root=$dir/root
site=$dir/site
python=${PYTHON:-python3}
data=_sysconfigdata__aarch64-linux-gnu
mkdir -p "$dir"

if [ ! -e "$root/usr/bin/python3.11" ]; then
    debootstrap --arch=arm64 --download-only --variant=minbase \
        --include=python3.11,libpython3.11-dev,libgomp1 bookworm "$root"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
fi
if [ ! -e "$site/sitecustomize.py" ]; then
    "$python" -m pip install -q --target "$site" --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 \
        numpy jinja2 regex click rich platformdirs pytest hypothesis gguf
    # Tests start processes: theirs are emulated as well.
    printf 'import sys\n\nsys.executable = "%s/python"\n' "$dir" >"$site/sitecustomize.py"
fi
cat >"$dir/python" <<END
#!/bin/sh
export PYTHONPATH="$dir/source:$site"
exec qemu-aarch64-static -L "$root" "$root/usr/bin/python3.11" "\$@"
END
chmod +x "$dir/python"

# A copy of the sources: what is compiled in place here is for this machine.
mkdir -p "$dir/source" "$dir/config"
cp "$root/usr/lib/python3.11/$data.py" "$dir/config"
(cd "$here" && git ls-files -z | xargs -0 cp -u --parents -t "$dir/source")
cd "$dir/source"
PYTHONPATH=$dir/config _PYTHON_SYSCONFIGDATA_NAME=$data _PYTHON_HOST_PLATFORM=linux-aarch64 \
    CFLAGS="-I$root/usr/include/python3.11 -I$root/usr/include" RML_REQUIRE_EXT=1 \
    "$python" setup.py -q build_ext --inplace
exec "$dir/python" -m pytest -p no:cacheprovider "$@"
