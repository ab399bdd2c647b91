//! The C interface of ONNX Runtime, as far as a dense part needs it. Its table of functions only grows, and all that are
//! used have been in it since version 1.

#![allow(unsafe_code)] // functions of a library that is loaded at run time

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use crate::dense::engine::DenseInput;

type Status = *mut c_void;
type Unused<const FUNCTIONS: usize> = [*const c_void; FUNCTIONS];

/// Version of the table that is asked for.
const API_VERSION: u32 = 1;
/// Messages from this severity on are written to standard error: errors.
const LOG_ERROR: c_int = 3;
/// `ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT`
const FLOAT: c_int = 1;
/// `ORT_ENABLE_ALL`
const OPTIMIZE_ALL: c_int = 99;
/// `OrtDeviceAllocator`: memory of the caller.
const DEVICE_ALLOCATOR: c_int = 0;
/// `OrtMemTypeDefault`
const MEMORY_DEFAULT: c_int = 0;

#[repr(C)]
struct ApiBase {
    get_api: unsafe extern "C" fn(u32) -> *const Api,
    version: unsafe extern "C" fn() -> *const c_char,
}

/// The table of functions; only those in use have a type.
#[repr(C)]
struct Api {
    _0: Unused<2>,
    get_error_message: unsafe extern "C" fn(Status) -> *const c_char,
    create_env: unsafe extern "C" fn(c_int, *const c_char, *mut *mut c_void) -> Status,
    _4: Unused<4>,
    create_session_from_array:
        unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, *mut *mut c_void) -> Status,
    run: unsafe extern "C" fn(
        *mut c_void,
        *const c_void,
        *const *const c_char,
        *const *const c_void,
        usize,
        *const *const c_char,
        usize,
        *mut *mut c_void,
    ) -> Status,
    create_session_options: unsafe extern "C" fn(*mut *mut c_void) -> Status,
    _11: Unused<6>,
    disable_mem_pattern: unsafe extern "C" fn(*mut c_void) -> Status,
    _18: Unused<1>,
    disable_cpu_mem_arena: unsafe extern "C" fn(*mut c_void) -> Status,
    _20: Unused<3>,
    set_session_graph_optimization_level: unsafe extern "C" fn(*mut c_void, c_int) -> Status,
    set_intra_op_num_threads: unsafe extern "C" fn(*mut c_void, c_int) -> Status,
    set_inter_op_num_threads: unsafe extern "C" fn(*mut c_void, c_int) -> Status,
    _26: Unused<23>,
    create_tensor_with_data: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        *const i64,
        usize,
        c_int,
        *mut *mut c_void,
    ) -> Status,
    _50: Unused<1>,
    get_tensor_mutable_data: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> Status,
    _52: Unused<8>,
    get_tensor_element_type: unsafe extern "C" fn(*const c_void, *mut c_int) -> Status,
    _61: Unused<3>,
    get_tensor_shape_element_count: unsafe extern "C" fn(*const c_void, *mut usize) -> Status,
    get_tensor_type_and_shape: unsafe extern "C" fn(*const c_void, *mut *mut c_void) -> Status,
    _66: Unused<3>,
    create_cpu_memory_info: unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> Status,
    _70: Unused<22>,
    release_env: unsafe extern "C" fn(*mut c_void),
    release_status: unsafe extern "C" fn(Status),
    release_memory_info: unsafe extern "C" fn(*mut c_void),
    release_session: unsafe extern "C" fn(*mut c_void),
    release_value: unsafe extern "C" fn(*mut c_void),
    _97: Unused<2>,
    release_tensor_type_and_shape_info: unsafe extern "C" fn(*mut c_void),
    release_session_options: unsafe extern "C" fn(*mut c_void),
}

/// The loaded library. It stays loaded until the process ends, since its threads and handlers may outlive a model.
pub(crate) struct Library {
    api: &'static Api,
    environment: *mut c_void,
    memory: *mut c_void,
}

// SAFETY: the environment and the description of memory are not changed after they were made, and the library
// serialises what it changes itself.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library at a path, or of a name in the system's directories.
    ///
    /// # Errors
    /// No library, or not this one.
    pub(crate) fn load(path: &Path) -> Result<Library, String> {
        let shown = path.display();
        let name = CString::new(OsStr::as_bytes(path.as_os_str())).map_err(|error| error.to_string())?;
        // SAFETY: a text that ends in zero; the initialisers of the library that the user named, or installed, run.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the error of the call above, a text that lives until the next call of this thread.
            let error = unsafe { libc::dlerror() };
            // SAFETY: not null after a failure.
            let error = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
            return Err(format!("ONNX Runtime: {error}"));
        }
        // SAFETY: the handle is open and the name ends in zero.
        let base = unsafe { libc::dlsym(handle, c"OrtGetApiBase".as_ptr()) };
        if base.is_null() {
            return Err(format!("{shown}: is not the library of ONNX Runtime"));
        }
        // SAFETY: this symbol is documented to be such a function.
        let base: unsafe extern "C" fn() -> *const ApiBase = unsafe { std::mem::transmute(base) };
        // SAFETY: it takes nothing and returns a table that lives as long as the library.
        let base = unsafe { &*base() };
        // SAFETY: a function of the table.
        let api = unsafe { (base.get_api)(API_VERSION) };
        if api.is_null() {
            // SAFETY: returns a constant text.
            let version = unsafe { CStr::from_ptr((base.version)()) }.to_string_lossy();
            return Err(format!(
                "{shown}: ONNX Runtime {version} no longer has the first version of its interface"
            ));
        }
        // SAFETY: not null; it lives as long as the library, which is never unloaded.
        let api = unsafe { &*api };
        let mut library = Library { api, environment: null_mut(), memory: null_mut() };
        // SAFETY: the log's name ends in zero; the out pointer is of our own.
        let made =
            unsafe { (api.create_env)(LOG_ERROR, c"sanderling".as_ptr(), &raw mut library.environment) };
        library.check(made)?;
        // SAFETY: constants of the interface; the out pointer is of our own.
        let made = unsafe {
            (api.create_cpu_memory_info)(DEVICE_ALLOCATOR, MEMORY_DEFAULT, &raw mut library.memory)
        };
        library.check(made)?;
        Ok(library)
    }

    /// The message of a status, which is freed; none is success.
    fn check(&self, status: Status) -> Result<(), String> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: a status that a function of the table returned and that is not freed yet.
        let message = unsafe { CStr::from_ptr((self.api.get_error_message)(status)) };
        let message = message.to_string_lossy().replace('\n', " ");
        // SAFETY: as above; it is not used again.
        unsafe { (self.api.release_status)(status) };
        Err(format!("ONNX Runtime: {message}"))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made by this table, and used by nothing: sessions hold the library.
        unsafe {
            if !self.memory.is_null() {
                (self.api.release_memory_info)(self.memory);
            }
            if !self.environment.is_null() {
                (self.api.release_env)(self.environment);
            }
        }
    }
}

/// A value of the library, freed at the end of its scope.
struct Value<'a> {
    library: &'a Library,
    value: *mut c_void,
}

impl Drop for Value<'_> {
    fn drop(&mut self) {
        if !self.value.is_null() {
            // SAFETY: made by this table and not freed yet.
            unsafe { (self.library.api.release_value)(self.value) };
        }
    }
}

/// A dense part that runs on the threads that call it.
pub(crate) struct Session {
    library: Arc<Library>,
    session: *mut c_void,
    inputs: Vec<CString>,
    output: CString,
}

// SAFETY: a session may be run by any number of threads at once, as its documentation says; nothing else changes it.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Session {
    /// Loads an ONNX file.
    ///
    /// # Errors
    /// The message of the library.
    pub(crate) fn new(
        library: &Arc<Library>,
        onnx: &[u8],
        inputs: &[String],
        output: &str,
    ) -> Result<Session, String> {
        let text = |name: &str| CString::new(name).map_err(|_| format!("the name {name:?} has a zero byte"));
        let inputs = inputs.iter().map(|name| text(name)).collect::<Result<_, _>>()?;
        let mut session =
            Session { library: Arc::clone(library), session: null_mut(), inputs, output: text(output)? };
        let api = library.api;
        let mut options = null_mut();
        // SAFETY: the out pointer is of our own.
        library.check(unsafe { (api.create_session_options)(&raw mut options) })?;
        // An arena would grow to the largest batch and stay there; with one thread the caller computes.
        // SAFETY: options that were just made, and constants of the interface.
        let set = unsafe {
            [
                (api.set_intra_op_num_threads)(options, 1),
                (api.set_inter_op_num_threads)(options, 1),
                (api.disable_cpu_mem_arena)(options),
                (api.disable_mem_pattern)(options),
                (api.set_session_graph_optimization_level)(options, OPTIMIZE_ALL),
            ]
        };
        let mut made = Ok(());
        for status in set {
            made = made.and(library.check(status));
        }
        if made.is_ok() {
            // SAFETY: environment and options are alive; the bytes are read during the call; the out pointer is ours.
            let status = unsafe {
                (api.create_session_from_array)(
                    library.environment,
                    onnx.as_ptr().cast(),
                    onnx.len(),
                    options,
                    &raw mut session.session,
                )
            };
            made = library.check(status);
        }
        // SAFETY: made above and not used again; a session keeps a copy.
        unsafe { (api.release_session_options)(options) };
        made.map(|()| session)
    }

    /// Runs the dense part on this thread and appends its output.
    ///
    /// # Errors
    /// The message of the library.
    pub(crate) fn run(&self, inputs: &[DenseInput<'_>], output: &mut Vec<f32>) -> Result<(), String> {
        let (library, api) = (&*self.library, self.library.api);
        if inputs.len() != self.inputs.len() {
            return Err(format!("{} inputs for {}", inputs.len(), self.inputs.len()));
        }
        let mut values = Vec::with_capacity(inputs.len());
        for input in inputs {
            let shape = &input.shape[..input.dimensions];
            let mut value = Value { library, value: null_mut() };
            // SAFETY: the library reads the values, which outlive the tensor, and never writes to an input; it checks
            // their length against the shape.
            let status = unsafe {
                (api.create_tensor_with_data)(
                    library.memory,
                    input.values.as_ptr().cast_mut().cast(),
                    size_of_val(input.values),
                    shape.as_ptr(),
                    shape.len(),
                    FLOAT,
                    &raw mut value.value,
                )
            };
            library.check(status)?;
            values.push(value);
        }
        let pointers: Vec<*const c_void> = values.iter().map(|value| value.value.cast_const()).collect();
        let names: Vec<*const c_char> = self.inputs.iter().map(|name| name.as_ptr()).collect();
        let output_name = self.output.as_ptr();
        let mut found = Value { library, value: null_mut() };
        // SAFETY: as many names as inputs, one output; all live through the call; no options.
        let status = unsafe {
            (api.run)(
                self.session,
                null(),
                names.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                &raw const output_name,
                1,
                &raw mut found.value,
            )
        };
        library.check(status)?;
        let count = self.float_count(&found)?;
        let mut data: *mut c_void = null_mut();
        // SAFETY: a tensor of the library; the out pointer is of our own.
        library.check(unsafe { (api.get_tensor_mutable_data)(found.value, &raw mut data) })?;
        if count > 0 {
            // SAFETY: the tensor has that many floats, and lives until the end of this function.
            output.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast::<f32>(), count) });
        }
        Ok(())
    }

    /// The number of values of an output, which must be floats.
    fn float_count(&self, output: &Value<'_>) -> Result<usize, String> {
        let (library, api) = (&*self.library, self.library.api);
        let mut info = null_mut();
        // SAFETY: a value of the library; the out pointer is of our own.
        library.check(unsafe { (api.get_tensor_type_and_shape)(output.value, &raw mut info) })?;
        let (mut kind, mut count) = (0, 0);
        // SAFETY: the description that was just made; the out pointers are of our own.
        let found = unsafe {
            [
                (api.get_tensor_element_type)(info, &raw mut kind),
                (api.get_tensor_shape_element_count)(info, &raw mut count),
            ]
        };
        let checked = found.map(|status| library.check(status));
        // SAFETY: made above and not used again.
        unsafe { (api.release_tensor_type_and_shape_info)(info) };
        checked.into_iter().collect::<Result<(), String>>()?;
        if kind == FLOAT {
            Ok(count)
        } else {
            Err("the output of the dense part is not of 32-bit floats".to_owned())
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.session.is_null() {
            // SAFETY: made by this table and not freed yet; the library is alive.
            unsafe { (self.library.api.release_session)(self.session) };
        }
    }
}
