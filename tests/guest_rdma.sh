#!/usr/bin/env bash
# Runs the tests of rdma:// on a device: of this machine, or soft RoCE (rdma_rxe) in a guest.
#
#   tests/guest_rdma.sh                  in a guest, about ten minutes
#   tests/guest_rdma.sh ADDRESS          on the device of this machine that has this IP address
#
# The tests are those of the transports over every kind of connection, and those of crates/cli/tests/all/rdma.rs: a
# server and clients as processes, rows compared under writers, either side killed, the link taken down (in the guest
# only), and a limit of locked memory. Soft RoCE has the verbs, the kernel's and the library's code paths and errors of
# a network card. It says nothing of speed: the guest is emulated (TCG), and so is the card.
#
# The guest needs qemu-system-x86, busybox-static, iproute2, libibverbs1 and ibverbs-providers on the host, and fetches
# Debian's linux-image package (70 MB, not installed) into target/guest.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
WORK=target/guest
GUEST_ADDRESS=10.0.0.1
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
echo "GUEST ended"
poweroff -f
INIT
make_initramfs

timeout "$SECONDS_MAX" qemu-system-x86_64 -machine pc -cpu max -smp 2 -accel tcg,thread=multi -m 3G -nographic -no-reboot \
    -kernel "$WORK/kernel/boot/vmlinuz-$VERSION" -initrd "$WORK/initramfs" \
    -append "console=ttyS0 quiet panic=-1 transport=$TRANSPORT_TESTS cli=$CLI_TESTS" </dev/null >"$WORK/log" 2>&1 || echo "the guest was ended"
tr -d '\r' <"$WORK/log"
if ! grep -qa "^GUEST transport 0" "$WORK/log" || ! grep -qa "^GUEST cli 0" "$WORK/log"; then
    echo "FAILED: $WORK/log"
    exit 1
fi
echo "PASSED: rdma:// over soft RoCE"
