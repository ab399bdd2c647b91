//! Devices, protection domains and registered memory of libibverbs as Rust values, which free what they hold. It knows
//! no queue pair.
#![allow(unsafe_code)] // calls the functions of libibverbs

use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::devices::{self, CLASS};
use super::ffi::{self, Context, DeviceAttr, Mr, PortAttr, Verbs};
use crate::shm::RingMemory;

/// Memory that this process has pinned for devices.
static PINNED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// An open device. All connections of a process share it.
pub(super) struct Device {
    pub(super) verbs: &'static Verbs,
    pub(super) context: *mut Context,
    attr: DeviceAttr,
    pub(super) name: String,
}

// SAFETY: libibverbs may be called by any thread, and the pointers are not changed after they were made.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Finds out whether there is a device at all.
///
/// # Errors
/// The library or the folder that was looked for.
pub(super) fn check() -> Result<(), String> {
    let library = ffi::LIBRARY.to_string_lossy();
    let missing = |reason| format!("no RDMA device: {library} (package libibverbs1): {reason}");
    ffi::verbs().map_err(missing)?;
    devices::list(Path::new(CLASS)).map(drop).map_err(|reason| format!("no RDMA device: {reason}"))
}

/// The error of a function that returned nothing, or its error number.
pub(super) fn failed(action: &str, error: Errno) -> String {
    if error != Errno::NOMEM && error != Errno::AGAIN {
        return format!("cannot {action}: {error}");
    }
    let limit = match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{} KiB", bytes >> 10),
        None => "unlimited".to_owned(),
    };
    format!(
        "cannot {action}: {error}; locked memory is limited to {limit} (RLIMIT_MEMLOCK): raise it (ulimit -l, or \
         LimitMEMLOCK= of a systemd unit)"
    )
}

pub(super) fn last_error(action: &str) -> String {
    failed(action, Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOMEM))
}

/// The result of a function that returns 0, an error number, or -1.
pub(super) fn checked(action: &str, result: c_int) -> Result<(), String> {
    match result {
        0 => Ok(()),
        ..0 => Err(last_error(action)),
        1.. => Err(failed(action, Errno::from_raw_os_error(result))),
    }
}

impl Device {
    /// Opens a device, once per process.
    pub(super) fn open(name: &str) -> Result<Arc<Device>, String> {
        static OPEN: Mutex<Vec<(String, Weak<Device>)>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, device)| device.strong_count() > 0);
        if let Some(device) =
            open.iter().find(|(other, _)| other == name).and_then(|(_, device)| device.upgrade())
        {
            return Ok(device);
        }
        let device = Arc::new(Device::open_anew(name)?);
        open.push((name.to_owned(), Arc::downgrade(&device)));
        Ok(device)
    }

    fn open_anew(name: &str) -> Result<Device, String> {
        let verbs = ffi::verbs()?;
        let mut count = 0;
        // SAFETY: the library writes the number of devices.
        let all = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        if all.is_null() {
            return Err(last_error("list the devices"));
        }
        let mut names = Vec::new();
        let mut context = null_mut();
        for at in 0..usize::try_from(count).unwrap_or_default() {
            // SAFETY: the list has `count` entries.
            let device = unsafe { *all.add(at) };
            // SAFETY: an entry of a list that is not freed yet; its name is a text that ends in zero.
            let found = unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(device)) };
            if found.to_str() == Ok(name) {
                // SAFETY: as above.
                context = unsafe { (verbs.ibv_open_device)(device) };
            }
            names.push(found.to_string_lossy().into_owned());
        }
        let opened = if names.iter().any(|found| found == name) {
            if context.is_null() { Err(last_error(&format!("open the device {name}"))) } else { Ok(()) }
        } else {
            let found = if names.is_empty() { "no devices".to_owned() } else { names.join(", ") };
            Err(format!(
                "{name} has no driver in libibverbs (package ibverbs-providers), which lists {found}"
            ))
        };
        // SAFETY: the list is used no more.
        unsafe { (verbs.ibv_free_device_list)(all) };
        opened?;
        // SAFETY: numbers only, for all of which zero is a value.
        let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: an open device, and memory for its attributes.
        let queried = unsafe { (verbs.ibv_query_device)(context, &raw mut attr) };
        let device = Device { verbs, context, attr, name: name.to_owned() };
        checked("query the device", queried)?;
        Ok(device)
    }

    /// Most requests of a queue.
    pub(super) fn requests_max(&self) -> u32 {
        u32::try_from(self.attr.max_qp_wr).unwrap_or_default()
    }

    /// Most elements of a gather list.
    pub(super) fn elements_max(&self) -> usize {
        usize::try_from(self.attr.max_sge).unwrap_or(1).max(1)
    }

    /// LID and MTU of a port.
    pub(super) fn port(&self, number: u8) -> Result<(u16, u8), String> {
        // SAFETY: numbers only, for all of which zero is a value.
        let mut attr: PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: an open device, and memory for a port's attributes.
        let result = unsafe { (self.verbs.ibv_query_port)(self.context, number, &raw mut attr) };
        checked("query the port", result)?;
        Ok((attr.lid, attr.active_mtu.clamp(1, 5) as u8))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: domains keep their device, so none is left.
        unsafe { (self.verbs.ibv_close_device)(self.context) };
    }
}

/// A protection domain: the queue pairs in it reach the memory in it and no other.
pub(super) struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) domain: *mut c_void,
}

// SAFETY: as for `Device`.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(device: Arc<Device>) -> Result<Arc<Domain>, String> {
        // SAFETY: an open device.
        let domain = unsafe { (device.verbs.ibv_alloc_pd)(device.context) };
        if domain.is_null() {
            return Err(last_error("make a protection domain"));
        }
        Ok(Arc::new(Domain { device, domain }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs keep their domain, so none is left.
        unsafe { (self.device.verbs.ibv_dealloc_pd)(self.domain) };
    }
}

/// Memory that a device may read, and that the other end of a queue pair may write.
pub(super) struct Region {
    domain: Arc<Domain>,
    mr: *mut Mr,
    bytes: usize,
    /// The memory itself, which stays mapped as long as it is registered.
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers a ring, which pins it.
    pub(super) fn of(domain: &Arc<Domain>, ring: &RingMemory, is_written: bool) -> Result<Region, String> {
        let access = if is_written { ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_WRITE } else { 0 };
        Region::register(domain, ring.place(), access, ring.keep())
    }

    /// Registers memory that the device may read, and no other end may touch. `keep` keeps it mapped.
    pub(super) fn of_memory(
        domain: &Arc<Domain>,
        start: usize,
        bytes: usize,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Region, String> {
        Region::register(domain, (start, bytes), 0, keep)
    }

    fn register(
        domain: &Arc<Domain>,
        (start, bytes): (usize, usize),
        access: c_int,
        memory: Arc<dyn Any + Send + Sync>,
    ) -> Result<Region, String> {
        let verbs = domain.device.verbs;
        // SAFETY: the call fails for memory that is not mapped, and pins it otherwise, so that the device never touches
        // memory of others. It writes to rings only, which are read as memory that another process shares.
        let mr = unsafe { (verbs.ibv_reg_mr)(domain.domain, start as *mut c_void, bytes, access) };
        if mr.is_null() {
            let pinned = PINNED_BYTES.load(Ordering::Relaxed) >> 10;
            return Err(last_error(&format!("pin {} KiB of memory beside {pinned} KiB", bytes >> 10)));
        }
        PINNED_BYTES.fetch_add(bytes, Ordering::Relaxed);
        Ok(Region { domain: Arc::clone(domain), mr, bytes, _memory: memory })
    }

    /// The keys of the device's own accesses, and of those of the other end.
    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: it lives until it is deregistered.
        unsafe { ((*self.mr).lkey, (*self.mr).rkey) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was registered, and is used no more: queue pairs that use it are gone, or fail.
        unsafe { (self.domain.device.verbs.ibv_dereg_mr)(self.mr) };
        PINNED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
