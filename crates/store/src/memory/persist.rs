//! Write-back of cache lines to memory that survives the loss of power.
//!
//! A store to such memory is durable only after its cache line was written back ([`Persist::flush`]) and the thread
//! has waited for that ([`Persist::fence`]). Until then a line may also be written back by itself, at any time; stores
//! to one line become durable in their order. Each call has a [`Step`], by which tests leave it out.
#![allow(unsafe_code)] // instructions that write cache lines back

#[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
pub(crate) mod trace;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A step of the protocol: what is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Rows without a key, before a slot gets one.
    Rows,
    /// The second part of rows in two parts, like [`Step::Rows`], whose fence waits for both.
    Rests,
    /// Slots of inserted keys and of replaced rows, before former rows are freed and the caller is answered.
    Slots,
    /// The slot of a removed key, before the key is unlocked.
    Removal,
    /// The home slot of a promoted key, before its old one is emptied.
    Promotion,
    /// The record of an exchange, before its slots change.
    Exchange,
    /// Both slots of an exchange, before its record ends.
    Exchanged,
    /// The end of the record of an exchange, before either key is unlocked.
    ExchangeEnd,
    /// Copies of a share in a larger index, before the share counts as moved.
    Copies,
    /// Moved shares, before their keys change in the larger index.
    Moved,
    /// Moved shares set to 0, before a growth begins.
    NoMoves,
    /// The head.
    Head,
    /// The newest head, counts and records that a killed process has left, before the next one relies on them.
    Found,
    /// The directory of a device.
    Directory,
    /// New pieces of a file on a device, before anything in them is used.
    Zeros,
    /// Rows charged to the budget, before one of them is used.
    Charge,
    /// The use clock.
    Clock,
    /// Indexes that recovery has mended, before its records end.
    Mended,
    /// The end of the records of changes, before the head says that recovery is done.
    RecordsEnd,
    /// The indexes of a killed process, before rows without a key are used.
    Inherited,
    /// Bytes beside tables.
    Bytes,
}

/// The way in which this processor writes a cache line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Persist(Instruction);

/// The best instruction first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))] // other processors have none
enum Instruction {
    /// Keeps the line in the cache.
    Clwb,
    Clflushopt,
    Clflush,
}

impl Persist {
    /// The best instruction of this processor; `None` if it has none.
    pub(crate) fn detect() -> Option<Persist> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            const CLFLUSHOPT: u32 = 1 << 23;
            const CLWB: u32 = 1 << 24;
            // The instruction is slow in virtual machines.
            static FEATURES: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
            let features = FEATURES.get_or_init(|| {
                let has_leaf = std::arch::x86_64::__cpuid(0).eax >= 7;
                if has_leaf { std::arch::x86_64::__cpuid_count(7, 0).ebx } else { 0 }
            });
            Some(Persist(match features {
                features if features & CLWB != 0 => Instruction::Clwb,
                features if features & CLFLUSHOPT != 0 => Instruction::Clflushopt,
                _ => Instruction::Clflush,
            }))
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        None
    }

    /// Begins to write back the cache lines of these values.
    #[inline]
    pub(crate) fn flush<T>(self, step: Step, values: &[T]) {
        #[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
        if !trace::flush(step, values.as_ptr() as usize, size_of_val(values)) {
            return;
        }
        let _ = step;
        let first = values.as_ptr() as usize / LINE_BYTES * LINE_BYTES;
        let end = values.as_ptr() as usize + size_of_val(values);
        let before = values.as_ptr() as usize - first;
        let start = values.as_ptr().cast::<u8>().wrapping_sub(before);
        for line in 0..(end - first).div_ceil(LINE_BYTES) {
            self.0.write_back(start.wrapping_add(line * LINE_BYTES));
        }
    }

    /// Waits until the lines that this thread has flushed are durable.
    #[inline]
    pub(crate) fn fence(self, step: Step) {
        #[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
        if !trace::fence(step) {
            return;
        }
        let _ = step;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instruction orders stores, and every x86-64 processor has it. As assembly it orders the
        // compiler's stores, too.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
    }

    /// Writes the cache lines of these values back, and waits until they are durable.
    pub(crate) fn write_back<T>(self, step: Step, values: &[T]) {
        self.flush(step, values);
        self.fence(step);
    }
}

impl Instruction {
    #[inline(always)]
    fn write_back(self, line: *const u8) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the line belongs to a slice that the caller has borrowed. The instruction changes no content, and
        // this processor has it. Without `nomem`, the compiler leaves earlier stores before it.
        unsafe {
            match self {
                Instruction::Clwb => {
                    std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Instruction::Clflushopt => {
                    std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Instruction::Clflush => std::arch::x86_64::_mm_clflush(line),
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = line;
    }
}

/// A point between two stores whose order matters, for traces of tests.
#[inline(always)]
pub(crate) fn ordered() {
    #[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
    trace::point();
}

/// A moment when a thread holds no lock of a key, for traces of tests.
#[inline(always)]
pub(crate) fn unlocked() {
    #[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
    trace::unlocked();
}

/// The boot of the system: another one means that memory may have lost what was not durable.
pub(crate) fn boot_id() -> String {
    #[cfg(all(test, not(loom), not(miri), target_os = "linux"))]
    if let Some(boot) = trace::boot() {
        return boot;
    }
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
