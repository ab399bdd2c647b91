//! Messages between the replicas of a group. Their content is the servers' own, and this crate does not know it.

use crate::WireError;
use crate::limit::{FRAME_BYTES_MAX, URL_BYTES_MAX};
use crate::reader::Reader;
use crate::writer::Writer;

/// A message of another replica of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicate<'a> {
    /// Where the sender takes messages.
    pub url: &'a str,
    /// The message, with the sender and its epoch.
    pub envelope: &'a [u8],
}

impl<'a> Replicate<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.text("url", self.url, URL_BYTES_MAX)?;
        out.blob("envelope", self.envelope, FRAME_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Replicate<'a>, WireError> {
        Ok(Replicate {
            url: from.text("url", URL_BYTES_MAX)?,
            envelope: from.blob("envelope", FRAME_BYTES_MAX)?,
        })
    }
}
