#!/usr/bin/env bash
# The parts that guests in QEMU share: Debian's kernel with modules, and a root file system of copied programs. It is
# sourced, not run, and knows no test.

# Ends the script, visibly, if the host lacks one of these programs. The first argument names Debian's packages.
require_programs() {
    local packages=$1 program missing=()
    shift
    for program in qemu-system-x86_64 busybox dpkg-deb apt-get cargo "$@"; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "SKIPPED: ${missing[*]} not found; on Debian: apt-get install qemu-system-x86 busybox-static $packages"
        exit 0
    fi
}

# Fetches Debian's kernel and the modules of all guests into $WORK/kernel; sets VERSION. A folder of an earlier version of
# this script lacks modules and is fetched anew.
fetch_kernel() {
    if ! ls -d "$WORK"/kernel/lib/modules/*/kernel/drivers/infiniband >/dev/null 2>&1; then
        mkdir -p "$WORK/package"
        # The user of apt's downloads may write there, too.
        chmod 777 "$WORK/package"
        local package
        package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
        echo "fetching ${package:?the package linux-image-amd64 is unknown; run apt-get update}"
        (cd "$WORK/package" && apt-get download -q "$package")
        mkdir -p "$WORK/kernel.new"
        dpkg-deb --fsys-tarfile "$WORK/package/$package"_*.deb | tar -x -C "$WORK/kernel.new" --wildcards \
            './boot/vmlinuz-*' './lib/modules/*/modules.*' './lib/modules/*/kernel/drivers/nvdimm/*' \
            './lib/modules/*/kernel/drivers/dax/*' \
            './lib/modules/*/kernel/drivers/acpi/nfit/*' './lib/modules/*/kernel/fs/ext4/*' \
            './lib/modules/*/kernel/fs/jbd2/*' './lib/modules/*/kernel/fs/mbcache.ko' './lib/modules/*/kernel/lib/*' \
            './lib/modules/*/kernel/crypto/*' './lib/modules/*/kernel/drivers/infiniband/*' \
            './lib/modules/*/kernel/drivers/net/dummy.ko' './lib/modules/*/kernel/net/ipv4/udp_tunnel.ko' \
            './lib/modules/*/kernel/net/ipv6/*'
        rm -rf "$WORK/package" "$WORK/kernel"
        mv "$WORK/kernel.new" "$WORK/kernel"
    fi
    VERSION=$(basename "$WORK"/kernel/lib/modules/*)
}

# Makes an empty root file system in $WORK/root.
make_root() {
    rm -rf "$WORK/root"
    mkdir -p "$WORK/root"/{bin,lib,lib64,proc,sys,dev,mnt,run,tmp,etc}
    cp "$(command -v busybox)" "$WORK/root/bin/busybox"
}

# Copies a program with its libraries to a path in the root file system, without its symbols.
install_program() {
    mkdir -p "$WORK/root/$(dirname "$2")"
    cp -L "$1" "$WORK/root/$2"
    strip "$WORK/root/$2" 2>/dev/null || true
    install_libraries "$1"
}

# Copies the libraries of a program or a library.
install_libraries() {
    { ldd "$1" || true; } | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$WORK/root$(dirname "$library")"
        cp -L "$library" "$WORK/root$library"
    done
}

# Adds the modules and makes the initramfs of the root file system.
make_initramfs() {
    mkdir -p "$WORK/root/lib"
    cp -r "$WORK/kernel/lib/modules" "$WORK/root/lib/"
    busybox depmod -b "$WORK/root" "$VERSION"
    chmod +x "$WORK/root/init"
    (cd "$WORK/root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$WORK/initramfs"
}

# Prints the test program of a crate, which it builds.
test_program() {
    cargo test --workspace --locked --no-run --message-format=json |
        sed -n "s|.*\"manifest_path\":\"[^\"]*/crates/$1/Cargo.toml\".*\"executable\":\"\([^\"]*/all-[^\"]*\)\".*|\1|p" |
        tail -1
}
