#!/usr/bin/env bash
# Runs the tests of rdma:// on a device: of this machine, or soft RoCE (rdma_rxe) in a guest.
#
#   tests/guest_rdma.sh                  in a guest, about ten minutes
#   tests/guest_rdma.sh ADDRESS          on the device of this machine that has this IP address
#
# The tests are those of the transports over every kind of connection, and those of crates/cli/tests/all/rdma.rs: a
# server and clients as processes, rows compared under writers, gathered by the CPU and by the card, either side killed or
# stopped, the link taken down (in the guest only), a limit of locked memory, TLS. tests/guest_rdma.py pulls from Python. Soft RoCE has the verbs, the kernel's and the library's code paths and errors of
# a network card. It says nothing of speed: the guest is emulated (TCG), and so is the card.
#
# The guest needs qemu-system-x86, busybox-static, iproute2, libibverbs1 and ibverbs-providers on the host, and fetches
# Debian's linux-image package (70 MB, not installed) into target/guest. The part in Python needs the interpreter of .venv
# with numpy.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
WORK=target/guest
GUEST_ADDRESS=10.0.0.1
PYTHON=${PYTHON:-.venv/bin/python}
# The tests that run over every kind of connection, and those of servers and clients. Others need no device.
TRANSPORT_TESTS=${TRANSPORT_TESTS:-conversation::,killed_peer::,polling::several,polling::who}
CLI_TESTS=${CLI_TESTS:-rdma::}
SECONDS_MAX=1500
. tests/guest_root.sh

if [ $# -gt 0 ]; then
    export SANDERLING_TEST_RDMA_HOST=$1
    TRANSPORT=$(test_program transport)
    CLI=$(test_program cli)
    "${TRANSPORT:?cargo has built no program}" ${TRANSPORT_TESTS//,/ } --test-threads=1
    "${CLI:?cargo has built no program}" ${CLI_TESTS//,/ } --nocapture --test-threads=1
    exit
fi
PROVIDER=$(find /usr/lib /usr/lib64 -name 'librxe-rdmav*.so' 2>/dev/null | head -1)
if [ -z "$PROVIDER" ]; then
    echo "SKIPPED: libibverbs has no driver rxe; on Debian: apt-get install libibverbs1 ibverbs-providers"
    exit 0
fi
require_programs iproute2 rdma ip bash

fetch_kernel
make_root
TRANSPORT=$(test_program transport)
CLI=$(test_program cli)
BINARY=$(dirname "$(dirname "${CLI:?cargo has built no program}")")/sanderling
install_program "${TRANSPORT:?cargo has built no program}" bin/transport
install_program "$CLI" bin/cli
# Where the tests look for it.
install_program "$BINARY" "$BINARY"
for program in bash ip rdma prlimit; do install_program "$(command -v $program)" "usr/bin/$program"; done
mkdir -p "$WORK/root$(dirname "$PROVIDER")" "$WORK/root/etc/libibverbs.d"
cp "$PROVIDER" "$WORK/root$PROVIDER"
echo "driver rxe" >"$WORK/root/etc/libibverbs.d/rxe.driver"
# Programs load it by its name.
LIBRARY=$(ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -1)
mkdir -p "$WORK/root$(dirname "$LIBRARY")"
cp -L "$LIBRARY" "$WORK/root$LIBRARY"
install_libraries "$LIBRARY"
install_libraries "$PROVIDER"
# Python: the interpreter, its library without tests, numpy, and the package with the module that cargo has built.
HAS_PYTHON=0
MODULE=$(dirname "$BINARY")/lib_native.so
if "$PYTHON" -c 'import numpy' 2>/dev/null && [ -e "$MODULE" ]; then
    HAS_PYTHON=1
    PREFIX=$("$PYTHON" -c 'import sys; print(sys.base_prefix)')
    STANDARD=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
    NUMPY=$("$PYTHON" -c 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))')
    install_program "$(readlink -f "$PYTHON")" "$PREFIX/bin/python"
    mkdir -p "$WORK/root$STANDARD" "$WORK/root/python"
    tar -C "$STANDARD" --exclude=__pycache__ --exclude=./test --exclude=./site-packages --exclude=./idlelib \
        --exclude=./tkinter --exclude=./ensurepip --exclude='./config-*' --exclude='*.a' -c . | tar -C "$WORK/root$STANDARD" -x
    tar -C "$NUMPY" --exclude=__pycache__ --exclude=tests -c numpy numpy.libs | tar -C "$WORK/root/python" -x
    tar -C python --exclude=__pycache__ --exclude='*.so' -c sanderling | tar -C "$WORK/root/python" -x
    install_program "$MODULE" python/sanderling/_native.abi3.so
    # The system's libraries; numpy's own are beside it.
    { find "$WORK/root$STANDARD" "$WORK/root/python" -name '*.so*' -exec ldd {} + || true; } |
        sed -n 's|.* \(/\(usr/\)\{0,1\}lib[^ ]*\) .*|\1|p' | sort -u | while read -r library; do
        mkdir -p "$WORK/root$(dirname "$library")"
        cp -L "$library" "$WORK/root$library"
    done
    cp tests/guest_rdma.py "$WORK/root/python/guest_rdma.py"
else
    echo "without Python: $PYTHON has no numpy, or cargo has built no module"
fi
echo 'root:x:0:0:root:/tmp:/bin/sh' >"$WORK/root/etc/passwd"
echo '127.0.0.1 localhost' >"$WORK/root/etc/hosts"
cat >"$WORK/root/init" <<INIT
#!/bin/busybox sh
# Makes a soft RoCE device and runs the tests on it.
export PATH=/usr/bin:/bin
export TMPDIR=/tmp HOME=/tmp
/bin/busybox mkdir -p /usr/bin /usr/sbin
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
for module in crc32_generic dummy ib_uverbs rdma_rxe; do modprobe \$module || echo "GUEST no module \$module"; done
ip link set lo up
ip link show dummy0 >/dev/null 2>&1 || ip link add dummy0 type dummy
ip addr add $GUEST_ADDRESS/24 dev dummy0
ip link set dummy0 up
rdma link add rxe0 type rxe netdev dummy0
for _ in 1 2 3 4 5 6 7 8 9 10; do grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state && break; sleep 0.5; done
rdma link
ulimit -c 0
export SANDERLING_TEST_RDMA_HOST=$GUEST_ADDRESS SANDERLING_TEST_RDMA_INTERFACE=dummy0
cd /tmp
argument() { sed -n "s/.*\b\$1=\([^ ]*\).*/\1/p" /proc/cmdline | tr , ' '; }
transport \$(argument transport) --test-threads=1
echo "GUEST transport \$?"
cli \$(argument cli) --nocapture --test-threads=1
echo "GUEST cli \$?"
if [ $HAS_PYTHON = 1 ]; then
    PYTHONPATH=/python "${PREFIX:-}/bin/python" /python/guest_rdma.py "$BINARY" $GUEST_ADDRESS
    echo "GUEST python \$?"
fi
echo "GUEST ended"
poweroff -f
INIT
make_initramfs

timeout "$SECONDS_MAX" qemu-system-x86_64 -machine pc -cpu max -smp 2 -accel tcg,thread=multi -m 3G -nographic -no-reboot \
    -kernel "$WORK/kernel/boot/vmlinuz-$VERSION" -initrd "$WORK/initramfs" \
    -append "console=ttyS0 quiet panic=-1 transport=$TRANSPORT_TESTS cli=$CLI_TESTS" </dev/null >"$WORK/log" 2>&1 || echo "the guest was ended"
tr -d '\r' <"$WORK/log"
PARTS=(transport cli)
[ $HAS_PYTHON = 1 ] && PARTS+=(python)
for part in "${PARTS[@]}"; do
    grep -qa "^GUEST $part 0" "$WORK/log" && continue
    echo "FAILED: $part, see $WORK/log"
    exit 1
done
echo "PASSED: rdma:// over soft RoCE"
