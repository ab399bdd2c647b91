#!/usr/bin/env bash
# Takes the power of a guest away while it pushes to kept tables on persistent memory, and checks them at each boot.
#
#   tests/guest.sh [BOOTS]          8 by default; about 15 seconds each
#
# The guest is Debian's kernel in QEMU without virtualization (TCG), with two NVDIMMs whose content is a file each. One
# has a namespace in fsdax mode, with ext4 mounted with dax=always, so that the table's files are mapped with MAP_SYNC.
# The other one is a device without a file system (/dev/dax1.0). Boots take turns. It needs qemu-system-x86,
# busybox-static, ndctl and e2fsprogs on the host, and fetches Debian's linux-image package (70 MB, not installed) into
# target/guest.
#
# A killed QEMU keeps all stores of the guest, also those that a processor would still have in its cache. So this shows
# detection, mapping, file system, recovery and real kills. Missing flushes and fences are shown by kept::power alone.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
BOOTS=${1:-8}
WORK=target/guest
. tests/guest_root.sh
require_programs "ndctl e2fsprogs" ndctl mkfs.ext4

fetch_kernel
# The programs of the guest with their libraries, and a script that starts them.
make_root
PROGRAM=$(test_program store)
install_program "${PROGRAM:?cargo has built no program}" bin/guest
install_program "$(command -v ndctl)" bin/ndctl
install_program "$(command -v mkfs.ext4)" bin/mkfs.ext4
cat >"$WORK/root/init" <<'INIT'
#!/bin/busybox sh
# Starts the program of the guest.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in nfit nd_pmem dax_pmem device_dax crc32c_generic ext4; do modprobe $module; done
argument() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e /dev/pmem0 ] && break; sleep 0.2; done
if [ "$(argument is_new)" = 1 ]; then
    ndctl create-namespace -f -e namespace0.0 -m fsdax && mkfs.ext4 -q -b 4096 /dev/pmem0
    ndctl create-namespace -f -e namespace1.0 -m devdax
fi
GUEST_ACKNOWLEDGED=$(argument acknowledged)
case $(argument place) in
fsdax) mount -t ext4 -o dax=always /dev/pmem0 /mnt && GUEST_DIR=/mnt/tables ;;
devdax) [ -c /dev/dax1.0 ] && GUEST_DIR=/dev/dax1.0 ;;
esac
export GUEST_ACKNOWLEDGED GUEST_DIR
[ -n "$GUEST_DIR" ] && guest --exact guest::guest --ignored --nocapture --test-threads=1
echo "GUEST ended"
poweroff -f
INIT
make_initramfs

# Persistent memory without content. The last 16 MiB are labels of namespaces.
PLACES=(fsdax devdax)
NVDIMMS=()
for place in "${PLACES[@]}"; do
    rm -f "$WORK/$place"
    truncate -s 272M "$WORK/$place"
    NVDIMMS+=(-object "memory-backend-file,id=$place,share=on,mem-path=$WORK/$place,size=272M,pmem=off"
        -device "nvdimm,id=nvdimm-$place,memdev=$place,label-size=16M,unarmed=off")
done

ACKNOWLEDGED=(0 0)
for boot in $(seq "$BOOTS"); do
    turn=$(((boot - 1) % 2))
    qemu-system-x86_64 -machine pc,nvdimm=on -cpu max -m 512M,slots=4,maxmem=4G -nographic -no-reboot "${NVDIMMS[@]}" \
        -kernel "$WORK/kernel/boot/vmlinuz-$VERSION" -initrd "$WORK/initramfs" \
        -append "console=ttyS0 quiet panic=-1 is_new=$((boot == 1)) place=${PLACES[turn]} acknowledged=${ACKNOWLEDGED[turn]}" \
        </dev/null >"$WORK/log" 2>&1 &
    QEMU=$!
    # Until it pushes, and then for up to two seconds.
    for _ in $(seq 1200); do
        grep -qaE "GUEST (acknowledged|ended)" "$WORK/log" && break
        kill -0 "$QEMU" 2>/dev/null || break
        sleep 0.1
    done
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
    kill -9 "$QEMU" 2>/dev/null || true
    wait "$QEMU" 2>/dev/null || true
    if grep -qa "GUEST ended" "$WORK/log" || ! grep -qa "GUEST acknowledged" "$WORK/log"; then
        tail -40 "$WORK/log"
        echo "FAILED: boot $boot"
        exit 1
    fi
    grep -a "GUEST" "$WORK/log" | grep -av "GUEST acknowledged" | tr -d '\r' | sed "s/^/boot $boot: /"
    # A line that is not whole was not told.
    TOLD=$(tr -d '\r' <"$WORK/log" | sed -n '$!s/^.*GUEST acknowledged \([0-9]*\)$/\1/p' | tail -1)
    ACKNOWLEDGED[turn]=${TOLD:-${ACKNOWLEDGED[turn]}}
    echo "boot $boot: ${PLACES[turn]} killed after push ${ACKNOWLEDGED[turn]}"
done
echo "PASSED: $BOOTS losses of power"
