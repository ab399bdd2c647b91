//! Compression of the frames of one connection, in both directions, as agreed with the server. Knows no messages.

use sanderling_wire::{Agreed, Buffer, Codec, Compression, Features, limit};

/// The working memory of a connection, and the last frame that was compressed.
#[derive(Debug)]
pub(crate) struct Packing {
    how: Option<Compression>,
    packer: Codec,
    /// The last frame, compressed: a frame is asked for again while the connection has no room for it.
    packed: Buffer,
    /// Its number.
    id: Option<u64>,
    /// For what is received.
    pub(crate) unpacker: Codec,
}

impl Packing {
    pub(crate) fn new(how: Option<Compression>) -> Packing {
        Packing {
            how,
            packer: Codec::new(),
            packed: Buffer::new(2 * limit::FRAME_BYTES_MAX),
            id: None,
            unpacker: Codec::new(),
        }
    }

    /// The compression feature to offer.
    pub(crate) fn features(&self) -> Features {
        match self.how {
            Some(Compression::Lz4) => Features::LZ4,
            Some(Compression::Zstd) => Features::ZSTD,
            None => Features::NONE,
        }
    }

    /// Another connection, on which something else may be agreed on.
    pub(crate) fn restart(&mut self) {
        self.id = None;
    }

    /// The frame as it is to be sent; `id` tells it from all others of this connection.
    pub(crate) fn pack<'a>(&'a mut self, id: u64, frame: &'a [u8], agreed: &Agreed) -> &'a [u8] {
        let Some(how) = self.how.filter(|_| agreed.features.has(self.features())) else { return frame };
        if self.id != Some(id) {
            self.packed.clear();
            if self.packer.pack(frame, how, agreed, &mut self.packed).is_err() {
                // A frame that cannot be compressed is sent as it is.
                return frame;
            }
            self.id = Some(id);
        }
        self.packed.bytes()
    }
}
