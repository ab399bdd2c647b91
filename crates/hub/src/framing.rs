//! The length of a frame, for transports. Knows no message.

use sanderling_transport::Framing;
use sanderling_wire::{HEADER_BYTES, body_bytes};

/// The framing of frames of at most `frame_bytes_max` bytes.
pub(crate) fn framing(frame_bytes_max: usize) -> Framing {
    let body = |header: &[u8]| {
        let header = header.try_into().map_err(|_| "not a whole header".to_owned())?;
        body_bytes(header).map_err(|error| error.to_string())
    };
    Framing { header_bytes: HEADER_BYTES, body_bytes: body, frame_bytes_max }
}
