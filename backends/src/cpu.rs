//! The processor.

use std::sync::Arc;

use oxiline_kernels::{Backend, Isa, Op};

use crate::{Device, Found, Kind};

/// Our own kernels.
struct Cpu;

impl Backend for Cpu {
    fn id(&self) -> &str {
        "cpu"
    }

    fn runs(&self, _: Op) -> bool {
        true
    }
}

pub(crate) fn probe() -> Vec<Found> {
    let info = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = info("/proc/meminfo");
    let total = kilobytes(&memory, "MemTotal");
    // A container may get less than the machine has.
    let allowed = info("/sys/fs/cgroup/memory.max").trim().parse::<u64>().ok();
    let used = info("/sys/fs/cgroup/memory.current").trim().parse::<u64>().ok();
    let left = allowed.zip(used).map(|(allowed, used)| allowed.saturating_sub(used));
    let device = Device {
        id: "cpu".to_owned(),
        kind: Kind::Cpu,
        name: name(&info("/proc/cpuinfo")),
        features: features(),
        kernels: format!("{:?}", Isa::current()).to_lowercase(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory: least(total, allowed),
        memory_available: least(kilobytes(&memory, "MemAvailable"), left),
    };
    vec![Found { device, backend: Arc::new(Cpu) }]
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The maker's name, or the architecture where the system does not tell.
fn name(cpuinfo: &str) -> String {
    let field = |line: &str| {
        let (key, value) = line.split_once(':')?;
        ["model name", "Model", "Hardware"].contains(&key.trim()).then(|| value.trim().to_owned())
    };
    cpuinfo.lines().find_map(field).filter(|n| !n.is_empty()).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// A line of meminfo, in bytes.
fn kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<String> {
    let mut all = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => {
            $(if std::arch::is_x86_feature_detected!($name) {
                all.push($name.to_owned());
            })*
        };
    }
    look!("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512vnni", "avx512bf16", "avx512fp16");
    all
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<String> {
    let mut all = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => {
            $(if std::arch::is_aarch64_feature_detected!($name) {
                all.push($name.to_owned());
            })*
        };
    }
    look!("neon", "fp16", "dotprod", "i8mm", "bf16", "sve");
    all
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_tells_and_bears_what_it_does_not() {
        assert_eq!(name("processor\t: 0\nmodel name\t: Some CPU 9\n"), "Some CPU 9");
        assert_eq!(name(""), std::env::consts::ARCH);
        assert_eq!(kilobytes("MemTotal:       2048 kB\nMemAvailable: 1 kB\n", "MemTotal"), Some(2 << 20));
        for broken in ["", "MemTotal", "MemTotal: x kB", "MemTotal: 99999999999999999999 kB", "MemTotal: 5 MB"] {
            assert_eq!(kilobytes(broken, "MemTotal"), None);
        }
        assert_eq!(least(Some(3), None), Some(3));
        assert_eq!(least(Some(3), Some(2)), Some(2));
    }
}
