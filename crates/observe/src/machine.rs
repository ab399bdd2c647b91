//! The machine a process runs on and the memory it uses, read from `/proc`, `/etc/os-release` and the CPU itself.
//! Knows nothing of what the process does. What a system does not tell is "unknown" or 0, never an error.

use std::fs;

use serde::{Deserialize, Serialize};

/// Bytes in the "kB" of `/proc`.
const KIB_BYTES: u64 = 1024;
const UNKNOWN: &str = "unknown";

/// Processor, memory and system, as far as the system tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model, such as "AMD EPYC 9755".
    pub cpu: String,
    /// Logical processors of the machine.
    pub cpus: usize,
    /// Logical processors that this process may use (affinity and container limits).
    pub cpus_usable: usize,
    /// The widest vector instructions that run here.
    pub simd: SimdLevel,
    /// Main memory of the machine; 0 when unknown.
    pub memory_bytes: u64,
    /// Operating system, such as "Debian GNU/Linux 12 (bookworm)".
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Instruction set, such as "x86_64".
    pub arch: String,
}

/// Vector instructions, narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimdLevel {
    /// None that this code base uses.
    Scalar,
    /// 128-bit, every 64-bit Arm.
    Neon,
    /// 128-bit with byte shuffles, x86-64-v2.
    Sse42,
    /// 256-bit with fused multiply-add, x86-64-v3.
    Avx2,
    /// 512-bit (F, BW, DQ, VL), x86-64-v4.
    Avx512,
}

impl SimdLevel {
    /// Asks the processor, at run time.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
                return Self::Avx512;
            }
            if has!("avx2") && has!("fma") {
                return Self::Avx2;
            }
            if has!("sse4.2") {
                return Self::Sse42;
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Self::Neon;
        }
        Self::Scalar
    }
}

impl std::fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Neon => "NEON",
            Self::Sse42 => "SSE4.2",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
        })
    }
}

impl Machine {
    /// Looks around; takes some hundred microseconds and cannot fail.
    pub fn detect() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cpu: cpu_model(&cpuinfo).unwrap_or(UNKNOWN).to_owned(),
            cpus: fields(&cpuinfo, "processor").count().max(usable),
            cpus_usable: usable,
            simd: SimdLevel::detect(),
            memory_bytes: kib_field(&meminfo, "MemTotal").unwrap_or(0),
            os: os_name(&read("/etc/os-release")).unwrap_or_else(|| std::env::consts::OS.to_owned()),
            kernel: non_empty(read("/proc/sys/kernel/osrelease").trim()).unwrap_or(UNKNOWN).to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
        }
    }
}

/// Number of the running kernel: processes that see the same one can share memory. 0 where the system does not tell.
#[must_use]
pub fn host_id() -> u64 {
    host_id_of(&fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

/// The first 64 bits of a UUID's text.
fn host_id_of(uuid: &str) -> u64 {
    let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Memory that can be had at this moment without taking any from others; `None` where the system does not say.
///
/// It is that of the machine, or less where the container has a limit.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let machine = kib_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")?;
    let file = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).unwrap_or_default();
    let container = container_available(&file("max"), &file("current"), &file("stat"));
    Some(container.map_or(machine, |container| container.min(machine)))
}

/// Memory that is left in a control group, page cache included; `None` without a limit.
fn container_available(max: &str, current: &str, stat: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let cache = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")).and_then(number);
    Some((number(max)? + cache.unwrap_or(0)).saturating_sub(number(current)?))
}

/// Memory of this process that lies in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resident {
    /// At this moment.
    pub now_bytes: u64,
    /// The most since the process started.
    pub peak_bytes: u64,
}

impl Resident {
    /// Reads `/proc/self/status`; zeros where there is none.
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> Self {
        let now_bytes = kib_field(status, "VmRSS").unwrap_or(0);
        // The kernel updates the two at different moments: a peak below the present would be absurd to print.
        Self { now_bytes, peak_bytes: kib_field(status, "VmHWM").unwrap_or(0).max(now_bytes) }
    }
}

/// The values of every `name : value` line.
fn fields<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn kib_field(text: &str, name: &str) -> Option<u64> {
    let kib: u64 = fields(text, name).next()?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(KIB_BYTES)
}

/// x86 says "model name"; some Arm boards say "Hardware" or "Model", most say nothing.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    ["model name", "Hardware", "Model"].iter().find_map(|name| fields(cpuinfo, name).find_map(non_empty))
}

fn os_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    non_empty(value.trim().trim_matches('"')).map(str::to_owned)
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_processors_and_a_name() {
        let machine = Machine::detect();
        assert!(machine.cpus >= machine.cpus_usable && machine.cpus_usable >= 1);
        assert!(!machine.cpu.is_empty() && !machine.os.is_empty() && !machine.kernel.is_empty());
        let json = serde_json::to_string(&machine).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), machine);
    }

    #[test]
    fn a_host_has_the_first_half_of_its_boot_id() {
        assert_eq!(host_id_of("01234567-89ab-cdef-fedc-ba9876543210\n"), 0x0123_4567_89ab_cdef);
        assert_eq!(host_id_of(""), 0);
        assert_eq!(host_id(), host_id());
    }

    #[test]
    fn a_container_may_use_what_its_limit_leaves() {
        let stat = "anon 5\ninactive_file 30\nactive_file 7\n";
        for (max, current, stat, expected) in [
            ("1000\n", "400\n", stat, Some(630)),
            ("1000\n", "400\n", "", Some(600)),
            ("1000\n", "2000\n", "", Some(0)),
            ("max\n", "400\n", stat, None),
            ("", "", "", None),
        ] {
            assert_eq!(container_available(max, current, stat), expected, "{max} {current}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn less_memory_is_available_than_there_is() {
        let available_bytes = available_bytes().unwrap();
        assert!(0 < available_bytes && available_bytes < Machine::detect().memory_bytes);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn resident_memory_follows_an_allocation() {
        const TOUCHED_BYTES: usize = 64 << 20;
        let before = Resident::read();
        let held = vec![1u8; TOUCHED_BYTES];
        let after = Resident::read();
        assert!(held.iter().step_by(4096).all(|&byte| byte == 1));
        assert!(after.peak_bytes >= after.now_bytes);
        assert!(after.now_bytes >= before.now_bytes + TOUCHED_BYTES as u64 / 2, "{before:?} {after:?}");
    }

    #[test]
    fn proc_texts() {
        fn check(status: &str, now_bytes: u64, peak_bytes: u64) {
            assert_eq!(Resident::parse(status), Resident { now_bytes, peak_bytes }, "{status:?}");
        }
        check("VmHWM:\t    2048 kB\nVmRSS:\t  1024 kB\n", 1 << 20, 2 << 20);
        check("VmRSS:\t  1024 kB\n", 1 << 20, 1 << 20);
        check("VmRSS: lots\nVmHWM: 1 MB", 0, 0);
        check("VmRSS: 18446744073709551615 kB", 0, 0);
        check("", 0, 0);
    }

    #[test]
    fn names() {
        assert_eq!(cpu_model("processor : 0\nmodel name\t: \nmodel name\t: X 1\n"), Some("X 1"));
        assert_eq!(cpu_model("Model : Board\nHardware : BCM2711\n"), Some("BCM2711"));
        assert_eq!(cpu_model(""), None);
        assert_eq!(os_name("ID=x\nPRETTY_NAME=\"Some OS 1\"\n").as_deref(), Some("Some OS 1"));
        assert_eq!(os_name("PRETTY_NAME=\"\"\n"), None);
    }

    #[test]
    fn simd_levels_are_ordered_by_width() {
        assert!(SimdLevel::Scalar < SimdLevel::Sse42 && SimdLevel::Sse42 < SimdLevel::Avx2);
        assert!(SimdLevel::Avx2 < SimdLevel::Avx512);
    }
}
