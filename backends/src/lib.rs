//! Compute devices found at run time.
//!
//! Nothing is linked for a device: a probe looks for it when asked, and finds none where there is
//! none. The CPU is always there.

mod cpu;

use std::sync::Arc;

pub use oxiline_kernels::Backend;
use serde::Serialize;

/// What kind of device computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// The processor.
    Cpu,
}

/// A device as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    /// How it is asked for.
    pub id: String,
    /// What it is.
    pub kind: Kind,
    /// The maker's name for it.
    pub name: String,
    /// Instructions or abilities our kernels can use.
    pub features: Vec<String>,
    /// Those the kernels do use.
    pub kernels: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory this process may use, bytes; none where the system does not say.
    pub memory: Option<u64>,
    /// Memory free for it now, bytes; none where the system does not say.
    pub memory_available: Option<u64>,
}

/// A device and what computes on it.
pub struct Found {
    /// What it is.
    pub device: Device,
    /// What it runs.
    pub backend: Arc<dyn Backend>,
}

/// Looks for devices of one kind.
type Probe = fn() -> Vec<Found>;

/// In order of the list that is shown. GPUs join here, loaded at run time.
const PROBES: &[Probe] = &[cpu::probe];

/// Everything the probes find, with what computes on it.
pub fn probe() -> Vec<Found> {
    PROBES.iter().flat_map(|probe| probe()).collect()
}

/// The devices of this machine.
pub fn devices() -> Vec<Device> {
    probe().into_iter().map(|found| found.device).collect()
}

/// The backend of a device.
///
/// # Errors
/// When no device has this id: names those that are there.
pub fn backend(id: &str) -> Result<Arc<dyn Backend>, UnknownDevice> {
    let mut found = probe();
    match found.iter().position(|f| f.device.id == id) {
        Some(i) => Ok(found.swap_remove(i).backend),
        None => Err(UnknownDevice { id: id.to_owned(), known: found.into_iter().map(|f| f.device.id).collect() }),
    }
}

/// No device has this id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownDevice {
    /// What was asked for.
    pub id: String,
    /// What is there.
    pub known: Vec<String>,
}

impl std::fmt::Display for UnknownDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no device `{}` on this machine; use one of: {}", self.id, self.known.join(", "))
    }
}

impl std::error::Error for UnknownDevice {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there() {
        let devices = devices();
        assert_eq!(devices[0].id, "cpu");
        assert!(devices[0].cores >= 1 && !devices[0].name.is_empty());
        assert!(devices[0].memory.is_none_or(|m| m > 1 << 20));
    }

    #[test]
    fn a_backend_computes_or_the_message_says_what_is_there() {
        let cpu = backend("cpu").expect("always there");
        let pool = oxiline_kernels::Pool::new(1);
        let matrix = oxiline_kernels::Matrix::from_f32(1, 2, &[2.0, 3.0], oxiline_kernels::Storage::F32);
        let weight = cpu.upload(Arc::new(matrix));
        let mut y = [0.0];
        cpu.matmul(&pool, &weight, &[5.0, 7.0], Some(&[1.0]), oxiline_kernels::Epilogue::None, &mut y);
        assert_eq!(y, [32.0]);
        let error = backend("gpu7").err().expect("no such device");
        assert_eq!(error.to_string(), "no device `gpu7` on this machine; use one of: cpu");
    }
}
