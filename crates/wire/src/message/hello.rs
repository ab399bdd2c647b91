//! The first exchange of a connection, pings, and the notice of its end.

use std::fmt;

use crate::limit::{NAME_BYTES_MAX, PING_BYTES_MAX, REASON_BYTES_MAX, TOKEN_BYTES_MAX, URL_BYTES_MAX};
use crate::reader::Reader;
use crate::writer::Writer;
use crate::{Agreed, Features, Offer, WireError};

/// First request of a connection. Other requests must wait for its reply.
#[derive(Clone, Copy, PartialEq)]
pub struct Hello<'a> {
    /// The client's abilities.
    pub offer: Offer,
    /// Auth token, or empty.
    pub token: &'a str,
    /// The client's name in lists and logs.
    pub name: &'a str,
}

// The token must not reach a log.
impl fmt::Debug for Hello<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = if self.token.is_empty() { "none" } else { "hidden" };
        f.debug_struct("Hello")
            .field("offer", &self.offer)
            .field("token", &token)
            .field("name", &self.name)
            .finish()
    }
}

impl<'a> Hello<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.offer.check()?;
        out.u8(self.offer.version_min);
        out.u8(self.offer.version_max);
        out.bytes(&[0; 2]);
        out.u32(self.offer.features.0);
        out.u32(self.offer.frame_bytes_max);
        out.pad();
        out.text("token", self.token, TOKEN_BYTES_MAX)?;
        out.text("client name", self.name, NAME_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Hello<'a>, WireError> {
        let (version_min, version_max) = (from.u8("version_min")?, from.u8("version_max")?);
        if from.bytes("version_max", 2)? != [0; 2] {
            return Err(WireError::Padding { what: "version_max" });
        }
        let features = Features(from.u32("features")?);
        let offer =
            Offer { version_min, version_max, features, frame_bytes_max: from.u32("frame_bytes_max")? };
        from.pad("frame_bytes_max")?;
        offer.check()?;
        let token = from.text("token", TOKEN_BYTES_MAX)?;
        Ok(Hello { offer, token, name: from.text("client name", NAME_BYTES_MAX)? })
    }
}

/// Reply to [`Hello`]: the negotiated terms and the server's identity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Identity<'a> {
    /// The terms from the next frame on. The client checks them with [`Offer::accept`].
    pub agreed: Agreed,
    /// Maximum number of requests in flight per connection.
    pub in_flight_max: u32,
    /// Index of the shard.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of the server, constant over restarts.
    pub server_id: u64,
    /// Changes with every start. A change means that data in memory is lost.
    pub boot_id: u64,
    /// The history of the server's tables: the same as long as they hold every acknowledged change, also over a start.
    /// 0: [`Features::HISTORY`] is not agreed on.
    pub history_id: u64,
    /// Identifies the running operating system. Processes with the same id can share memory.
    pub host_id: u64,
    /// Version of the server's placement. 0: none.
    pub placement_version: u64,
    /// Name of the server in lists and logs.
    pub name: &'a str,
    /// Fastest address for clients of the same host, or empty.
    pub local_url: &'a str,
}

impl<'a> Identity<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.check()?;
        out.u8(self.agreed.version);
        out.bytes(&[0; 3]);
        out.u32(self.agreed.features.0);
        out.u32(self.agreed.frame_bytes_max);
        out.u32(self.in_flight_max);
        out.u32(self.shard);
        out.u32(self.shards);
        out.u64(self.server_id);
        out.u64(self.boot_id);
        out.u64(self.host_id);
        out.u64(self.placement_version);
        if self.agreed.features.has(Features::HISTORY) {
            out.u64(self.history_id);
        }
        out.text("server name", self.name, NAME_BYTES_MAX)?;
        out.text("local url", self.local_url, URL_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Identity<'a>, WireError> {
        let version = from.u8("version")?;
        if from.bytes("version", 3)? != [0; 3] {
            return Err(WireError::Padding { what: "version" });
        }
        let features = Features(from.u32("features")?);
        let agreed = Agreed { version, features, frame_bytes_max: from.u32("frame_bytes_max")? };
        let identity = Identity {
            agreed,
            in_flight_max: from.u32("in_flight_max")?,
            shard: from.u32("shard")?,
            shards: from.u32("shards")?,
            server_id: from.u64("server_id")?,
            boot_id: from.u64("boot_id")?,
            host_id: from.u64("host_id")?,
            placement_version: from.u64("placement_version")?,
            history_id: if features.has(Features::HISTORY) { from.u64("history_id")? } else { 0 },
            name: from.text("server name", NAME_BYTES_MAX)?,
            local_url: from.text("local url", URL_BYTES_MAX)?,
        };
        identity.check()?;
        Ok(identity)
    }

    fn check(&self) -> Result<(), WireError> {
        if self.shard < self.shards {
            return Ok(());
        }
        Err(WireError::Value { what: "shard", found: self.shard.into() })
    }
}

/// Requests a sign of life. Its sizes allow measuring the connection with frames as long as those of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping<'a> {
    /// Requested length of the reply's bytes.
    pub reply_bytes: u32,
    /// Arbitrary bytes.
    pub bytes: &'a [u8],
}

impl<'a> Ping<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.count("reply_bytes", self.reply_bytes as usize, PING_BYTES_MAX)?;
        out.pad();
        out.blob("ping", self.bytes, PING_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Ping<'a>, WireError> {
        let reply_bytes = from.count("reply_bytes", PING_BYTES_MAX)? as u32;
        from.pad("reply_bytes")?;
        Ok(Ping { reply_bytes, bytes: from.blob("ping", PING_BYTES_MAX)? })
    }
}

/// Reply to [`Ping`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pong<'a> {
    /// Whether the server accepts new work. False while it starts or drains.
    pub serving: bool,
    /// The requested number of bytes, of any content.
    pub bytes: &'a [u8],
}

impl<'a> Pong<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u8(self.serving.into());
        out.pad();
        out.blob("pong", self.bytes, PING_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Pong<'a>, WireError> {
        let serving = from.bool("serving")?;
        from.pad("serving")?;
        Ok(Pong { serving, bytes: from.blob("pong", PING_BYTES_MAX)? })
    }
}

/// Notice that the connection accepts no new requests: of a draining server, or of either side after a framing error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goaway<'a> {
    /// Milliseconds for which earlier requests are still answered.
    pub closing_in_ms: u32,
    /// The reason, for people. Encoding cuts it at [`REASON_BYTES_MAX`].
    pub reason: &'a str,
}

impl<'a> Goaway<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u32(self.closing_in_ms);
        out.pad();
        out.reason(self.reason)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Goaway<'a>, WireError> {
        let closing_in_ms = from.u32("closing_in_ms")?;
        from.pad("closing_in_ms")?;
        Ok(Goaway { closing_in_ms, reason: from.text("reason", REASON_BYTES_MAX)? })
    }
}
