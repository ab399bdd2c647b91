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
MISSING=()
for program in qemu-system-x86_64 busybox ndctl mkfs.ext4 dpkg-deb apt-get cargo; do
    command -v "$program" >/dev/null || MISSING+=("$program")
done
if [ ${#MISSING[@]} -gt 0 ]; then
    echo "SKIPPED: ${MISSING[*]} not found; on Debian: apt-get install qemu-system-x86 busybox-static ndctl e2fsprogs"
    exit 0
fi

# The kernel and its modules.
if ! ls "$WORK"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
    mkdir -p "$WORK/package"
    # The user of apt's downloads may write there, too.
    chmod 777 "$WORK/package"
    PACKAGE=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
    echo "fetching ${PACKAGE:?the package linux-image-amd64 is unknown; run apt-get update}"
    (cd "$WORK/package" && apt-get download -q "$PACKAGE")
    mkdir -p "$WORK/kernel.new"
    dpkg-deb --fsys-tarfile "$WORK/package/$PACKAGE"_*.deb | tar -x -C "$WORK/kernel.new" --wildcards \
        './boot/vmlinuz-*' './lib/modules/*/modules.*' './lib/modules/*/kernel/drivers/nvdimm/*' \
        './lib/modules/*/kernel/drivers/dax/*' \
        './lib/modules/*/kernel/drivers/acpi/nfit/*' './lib/modules/*/kernel/fs/ext4/*' \
        './lib/modules/*/kernel/fs/jbd2/*' './lib/modules/*/kernel/fs/mbcache.ko' './lib/modules/*/kernel/lib/*' \
        './lib/modules/*/kernel/crypto/*'
    rm -rf "$WORK/package" "$WORK/kernel"
    mv "$WORK/kernel.new" "$WORK/kernel"
fi
VERSION=$(basename "$WORK"/kernel/lib/modules/*)

# The programs of the guest with their libraries, and a script that starts them.
rm -rf "$WORK/root"
mkdir -p "$WORK/root"/{bin,lib,lib64,proc,sys,dev,mnt,run}
install_program() {
    cp "$1" "$WORK/root/bin/$2"
    { ldd "$1" || true; } | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$WORK/root$(dirname "$library")"
        cp -L "$library" "$WORK/root$library"
    done
}
PROGRAM=$(cargo test -p sanderling-store --test all --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/all-[^"]*\)".*/\1/p' | tail -1)
install_program "${PROGRAM:?cargo has built no program}" guest
strip "$WORK/root/bin/guest" || true
install_program "$(command -v ndctl)" ndctl
install_program "$(command -v mkfs.ext4)" mkfs.ext4
cp "$(command -v busybox)" "$WORK/root/bin/busybox"
cp -r "$WORK/kernel/lib/modules" "$WORK/root/lib/"
busybox depmod -b "$WORK/root" "$VERSION"
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
chmod +x "$WORK/root/init"
(cd "$WORK/root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$WORK/initramfs"

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
