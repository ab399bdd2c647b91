#!/usr/bin/env bash
# What looks for races, undefined behaviour and bytes that break a decoder (`make proof`). Runs what this machine has the tools
# for, says at the end what was skipped and why, and fails if anything that ran has failed. CONTRIBUTING.md explains the parts.
#
#   tests/proof.sh [PART...]        loom miri thread address fuzz soak kept; without any, all of them
#   TOOLCHAIN=stable                instead of nightly, also where that is installed
#   FUZZ_SECONDS=60                 for each fuzz target
#   SOAK_SECONDS=180
#   DRILLS=1000                     kills of a process that pushes to kept tables
set -uo pipefail
cd "$(dirname "$0")/.."

HOST=x86_64-unknown-linux-gnu
SKIPPED=()
FAILED=()

# Unstable flags are nightly's; stable takes them when it is told to.
if [ "${TOOLCHAIN:-nightly}" = nightly ] && cargo +nightly --version >/dev/null 2>&1; then
    UNSTABLE=(env cargo +nightly)
    SYSROOT=$(rustc +nightly --print sysroot)
else
    UNSTABLE=(env RUSTC_BOOTSTRAP=1 cargo)
    SYSROOT=$(rustc --print sysroot)
fi

skip() {
    echo "skipped: $1"
    SKIPPED+=("$1")
}

# Runs a command of a part, goes on whatever comes of it, and says how long it took.
try() {
    local what=$1 begun=$SECONDS
    shift
    echo "== $what: $*"
    "$@" || FAILED+=("$what")
    echo "== $what took $((SECONDS - begun)) s"
}

# Target folders of their own: other flags would build everything anew each time.
loom() {
    try loom env CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom" cargo test -p sanderling-store --lib --release loom_
}

miri() {
    if ! cargo +nightly miri --version >/dev/null 2>&1; then
        skip "Miri: needs nightly with miri and rust-src"
        return
    fi
    try miri env MIRIFLAGS="-Zmiri-disable-isolation" CARGO_TARGET_DIR=target/miri \
        cargo +nightly miri test -p sanderling-store --lib -- \
        index::tests rows::allocator:: rows::slab:: simd:: writer:: memory:: key_sampler:: sketch:: clock::
    try "miri, threads" env MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-many-seeds=0..8" CARGO_TARGET_DIR=target/miri \
        cargo +nightly miri test -p sanderling-store --test all threads::
}

# Without rust-src, std is not built with the thread sanitizer. Compiles what stands for it, and sets STD to the flags that link it.
stand_in_for_std() {
    local names=() wraps=--wrap=__tsan_atomic64_fetch_sub name pattern symbol symbols
    symbols=$(nm -D --defined-only "$SYSROOT"/lib/rustlib/$HOST/lib/libstd-*.so | awk '{ print $3 }')
    while read -r name pattern; do
        symbol=$(grep -E "$pattern" <<<"$symbols") || return
        names+=("-D$name=\"$symbol\"")
        wraps+=,--wrap=$symbol
    done <<'END'
LOCK 5mutex5futex.*Mutex14lock_contended$
READ 6rwlock5futex.*RwLock14read_contended$
WRITE 6rwlock5futex.*RwLock15write_contended$
WAIT 7condvar5futex.*Condvar4wait$
WAIT_TIMEOUT 7condvar5futex.*Condvar12wait_timeout$
ONCE 4once5futex.*Once4call$
LEAVE ScopeData29decrement_num_running_threads$
END
    mkdir -p target/thread && cc -O1 -c "${names[@]}" tests/tsan_std.c -o target/thread/std.o || return
    STD="-Clink-arg=$PWD/target/thread/std.o -Clink-arg=-Wl,$wraps"
}

# The concurrent tests, without the assembly, whose loads and stores a sanitizer would not see; longer, since they are slow then.
sanitizer() {
    local STD="" build_std=()
    if [ -e "$SYSROOT/lib/rustlib/src/rust/library/Cargo.lock" ]; then
        build_std=(-Zbuild-std)
    elif [ "$1" = thread ] && ! stand_in_for_std; then
        skip "thread sanitizer: needs rust-src, or a std whose locks are those that tests/tsan_std.c knows"
        return
    fi
    export RUSTFLAGS="-Zsanitizer=$1 -Cunsafe-allow-abi-mismatch=sanitizer --cfg scalar $STD"
    export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" SANDERLING_TEST_SECONDS="${SANDERLING_TEST_SECONDS:-3}"
    try "$1 sanitizer" env CARGO_TARGET_DIR="target/$1" "${UNSTABLE[@]}" test "${build_std[@]}" --target $HOST --release \
        --no-fail-fast -p sanderling-store --test all -- threads:: concurrent:: walk:: policies::
    if [ "$1" = thread ]; then
        # Shared memory between ends of a connection, sums that several bring, a server with clients in its process, and the threads
        # of a client, a queue, a hub and a job.
        try "$1 sanitizer, other crates" env CARGO_TARGET_DIR="target/$1" "${UNSTABLE[@]}" test "${build_std[@]}" \
            --target $HOST --release --no-fail-fast -p sanderling-transport -p sanderling-sync -p sanderling-server \
            -p sanderling-client -p sanderling-feed -p sanderling-hub -p sanderling-loader -p sanderling-job --lib \
            --test all
    fi
    unset RUSTFLAGS TSAN_OPTIONS
}

# What there is of good bytes, so that a target does not have to find them: seeds, with the bytes before them by which a target
# chooses how to read them.
seed() {
    local corpus=fuzz/corpus file
    mkdir -p $corpus/{wire_frame,text,exchanged}
    cp crates/wire/tests/golden/*.bin $corpus/wire_frame
    printf '\1\0\1a,b,c,d\n1,0.5,x,p|q\n0,,"y ""z""",\n' >$corpus/text/csv
    printf '\2\0\1a\tb\tc\td\n1\t0.5\tx\tp|q\n' >$corpus/text/tsv
    printf '\0\0\1' | cat - <(printf '1 3:0.25 12345678:1 # no\n-1 7:1e-3\n') >$corpus/text/libsvm
    printf '\3\0\1' | cat - <(printf '1%s%s\n' "$(printf '\t7%.0s' {1..13})" "$(printf '\t68fd1e64%.0s' {1..26})") \
        >$corpus/text/criteo
    for packing in gzip zstd; do
        command -v $packing >/dev/null && printf '\1\0\1' | cat - <(tail -c +4 $corpus/text/csv | $packing -c) \
            >$corpus/text/$packing
    done
    for file in examples/*.toml; do
        printf '\2' | cat - "$file" >"$corpus/exchanged/$(basename "$file")"
    done
    printf '\3{"data":{"train":"a.csv"},"train":{"batch":16},"feature":[{"name":"a"}]}' >$corpus/exchanged/json
    printf '\4{"feature":[{"name":"a","key":"raw"},{"each":["b","c"],"type":"multi"}]}' >$corpus/exchanged/spec
    # A row of a shuffle: two keys in one column, and in the other a key with a value. And the scores of no examples, but one row.
    printf '\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\x80\x3f\4\1\x0a\4\3\1\1\6\0\0\0\x3f' >$corpus/exchanged/row
    printf '\1' | cat - <(head -c 92 /dev/zero) >$corpus/exchanged/scores
    for file in tcp://localhost:7000 unix:/run/a shm:a '[::1]:7000'; do
        printf '\5%s' "$file" >"$corpus/exchanged/${file//[^a-z]/_}"
    done
}

fuzz() {
    if ! cargo fuzz --version >/dev/null 2>&1; then
        skip "fuzzing: needs \`cargo install cargo-fuzz --locked\`"
        return
    fi
    seed
    local target
    for target in fuzz/fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        try "fuzz $target" "${UNSTABLE[@]}" fuzz run --fuzz-dir fuzz "$target" -- \
            -max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=4096 -timeout=100
    done
}

soak() {
    try soak cargo run --release -p sanderling-store --example soak -- --seconds "${SOAK_SECONDS:-180}"
}

kept() {
    try "kept, instruction by instruction" cargo test -p sanderling-store --lib kept::steps -- --include-ignored --nocapture
    try "kept, loss of power" cargo test -p sanderling-store --lib kept::power -- --include-ignored --nocapture
    try "kept, kill -9" env DRILLS="${DRILLS:-1000}" cargo test -p sanderling-store --test all drill:: -- --nocapture
}

PARTS=("$@")
[ ${#PARTS[@]} -gt 0 ] || PARTS=(loom miri thread address fuzz soak kept)
for part in "${PARTS[@]}"; do
    case $part in
        thread | address) sanitizer "$part" ;;
        loom | miri | fuzz | soak | kept) "$part" ;;
        *) echo "no part $part" >&2 && exit 2 ;;
    esac
done

echo
for what in "${SKIPPED[@]}"; do echo "skipped: $what"; done
for what in "${FAILED[@]}"; do echo "FAILED: $what"; done
[ ${#FAILED[@]} = 0 ] || exit 1
echo "proof: everything that ran has passed; parts skipped: ${#SKIPPED[@]}"
