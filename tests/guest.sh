#!/usr/bin/env bash
# Takes the power of a guest away while it pushes to a kept table on persistent memory, and checks the table at each boot.
#
#   tests/guest.sh [BOOTS]          5 by default; about 10 seconds each
#
# The guest is Debian's kernel in QEMU without virtualization (TCG), with an NVDIMM whose content is a file: ext4 mounted
# with dax=always, so that the table's files are mapped with MAP_SYNC. It needs qemu-system-x86, busybox-static and
# e2fsprogs on the host, and fetches Debian's linux-image package (70 MB, not installed) into target/guest.
#
# A killed QEMU keeps all stores of the guest, also those that a processor would still have in its cache. So this shows
# detection, mapping, file system, recovery and real kills. Missing flushes and fences are shown by kept::power alone.
set -euo pipefail
cd "$(dirname "$0")/.."
BOOTS=${1:-5}
WORK=target/guest
MISSING=()
for program in qemu-system-x86_64 busybox mkfs.ext4 dpkg-deb apt-get cargo; do
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || MISSING+=("$program")
done
if [ ${#MISSING[@]} -gt 0 ]; then
    echo "SKIPPED: ${MISSING[*]} not found; on Debian: apt-get install qemu-system-x86 busybox-static e2fsprogs"
    exit 0
fi
mkdir -p "$WORK/root"/{bin,lib64,proc,sys,dev,mnt,modules}

# The kernel and its modules.
if ! ls "$WORK"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
    PACKAGE=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
    echo "fetching $PACKAGE"
    (cd "$WORK" && apt-get download "$PACKAGE" && mkdir -p kernel && dpkg-deb --fsys-tarfile "$PACKAGE"_*.deb |
        tar -x -C kernel --wildcards './boot/vmlinuz-*' './lib/modules/*/kernel/drivers/nvdimm/*' \
            './lib/modules/*/kernel/drivers/acpi/nfit/*' './lib/modules/*/kernel/fs/ext4/*' './lib/modules/*/kernel/fs/jbd2/*' \
            './lib/modules/*/kernel/fs/mbcache.ko' './lib/modules/*/kernel/lib/*' './lib/modules/*/kernel/crypto/*')
    rm -f "$WORK"/*.deb
fi

# Our program, with the libraries that it needs, and a script that starts it.
PROGRAM=$(cargo test -p sanderling-store --test all --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\/all-[^"]*\)".*/\1/p' | tail -1)
strip -o "$WORK/root/bin/guest" "$PROGRAM" || cp "$PROGRAM" "$WORK/root/bin/guest"
ldd "$PROGRAM" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$WORK/root$(dirname "$library")"
    cp -L "$library" "$WORK/root$library"
done
cp "$(command -v busybox)" "$WORK/root/bin/busybox"
for module in crc16 crc32c_generic libcrc32c mbcache jbd2 ext4 libnvdimm nfit nd_btt nd_pmem; do
    find "$WORK/kernel/lib" -name "$module.ko" -exec cp {} "$WORK/root/modules/" \;
done
cat >"$WORK/root/init" <<'INIT'
#!/bin/busybox sh
# Starts the program of the guest.
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
for module in crc16 crc32c_generic libcrc32c mbcache jbd2 ext4 libnvdimm nfit nd_btt nd_pmem; do
    /bin/busybox insmod /modules/$module.ko 2>/dev/null
done
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e /dev/pmem0 ] && break; /bin/busybox sleep 0.2; done
if /bin/busybox mount -t ext4 -o dax=always /dev/pmem0 /mnt; then
    export GUEST_DIR=/mnt/tables GUEST_ACKNOWLEDGED=$(/bin/busybox sed 's/.*acknowledged=\([0-9]*\).*/\1/' /proc/cmdline)
    /bin/guest --exact guest::guest --ignored --nocapture --test-threads=1
fi
echo "GUEST ended"
/bin/busybox poweroff -f
INIT
chmod +x "$WORK/root/init"
(cd "$WORK/root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$WORK/initramfs"

# Persistent memory with an empty file system.
rm -f "$WORK/pmem"
truncate -s 256M "$WORK/pmem"
PATH=$PATH:/usr/sbin mkfs.ext4 -q -b 4096 "$WORK/pmem"

ACKNOWLEDGED=0
for boot in $(seq "$BOOTS"); do
    qemu-system-x86_64 -machine pc,nvdimm=on -cpu max -m 512M,slots=2,maxmem=2G -nographic -no-reboot \
        -object memory-backend-file,id=pmem,share=on,mem-path="$WORK/pmem",size=256M,pmem=off \
        -device nvdimm,id=nvdimm,memdev=pmem,unarmed=off \
        -kernel "$(ls "$WORK"/kernel/boot/vmlinuz-*)" -initrd "$WORK/initramfs" \
        -append "console=ttyS0 quiet panic=-1 acknowledged=$ACKNOWLEDGED" </dev/null >"$WORK/log" 2>&1 &
    QEMU=$!
    # Until it pushes, and then for up to two seconds.
    for _ in $(seq 600); do
        grep -qa "GUEST acknowledged" "$WORK/log" && break
        grep -qa "GUEST ended" "$WORK/log" && break
        kill -0 "$QEMU" 2>/dev/null || break
        sleep 0.1
    done
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
    ENDED=$(grep -a "GUEST ended" "$WORK/log" || true)
    kill -9 "$QEMU" 2>/dev/null || true
    wait "$QEMU" 2>/dev/null || true
    if [ -n "$ENDED" ] || ! grep -qa "GUEST acknowledged" "$WORK/log"; then
        tail -40 "$WORK/log"
        echo "FAILED: boot $boot"
        exit 1
    fi
    grep -a "GUEST" "$WORK/log" | grep -av acknowledged | tr -d '\r' | sed "s/^/boot $boot: /"
    # A line that is not whole was not told.
    ACKNOWLEDGED=$(tr -d '\r' <"$WORK/log" | sed -n '$!s/^.*GUEST acknowledged \([0-9]*\)$/\1/p' | tail -1)
    ACKNOWLEDGED=${ACKNOWLEDGED:-0}
    echo "boot $boot: killed after push $ACKNOWLEDGED"
done
echo "PASSED: $BOOTS losses of power"
