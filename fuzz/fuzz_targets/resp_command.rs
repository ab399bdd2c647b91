//! Any bytes as a command of the RESP front: parsing does not panic, and a command is whole at its last byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sanderling_serve::resp_command_bytes;

fuzz_target!(|bytes: &[u8]| {
    if let Some(used) = resp_command_bytes(bytes) {
        assert!(used <= bytes.len());
        assert_eq!(resp_command_bytes(&bytes[..used]), Some(used));
        assert_eq!(resp_command_bytes(&bytes[..used - 1]), None);
    }
});
