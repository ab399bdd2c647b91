//! The first exchange of a connection, the sign of life, and the announcement of its end. Knows no table.

use std::fmt;

use crate::limit::{NAME_BYTES_MAX, PING_BYTES_MAX, REASON_BYTES_MAX, TOKEN_BYTES_MAX, URL_BYTES_MAX};
use crate::reader::Reader;
use crate::writer::Writer;
use crate::{Agreed, Features, Offer, WireError};

/// First request of a connection; until it is answered no other is allowed.
#[derive(Clone, Copy, PartialEq)]
pub struct Hello<'a> {
    /// What the client can do.
    pub offer: Offer,
    /// Bearer token, or empty.
    pub token: &'a str,
    /// How the client wants to be called in lists and logs.
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

/// Answer to [`Hello`]: what is agreed, and who answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Identity<'a> {
    /// What holds from the next frame on; the client checks it with [`Offer::accept`].
    pub agreed: Agreed,
    /// Requests that the server holds per connection before it answers "busy".
    pub in_flight_max: u32,
    /// Which shard it is, from 0.
    pub shard: u32,
    /// How many shards there are.
    pub shards: u32,
    /// Number of the server, the same over restarts.
    pub server_id: u64,
    /// Another one with every start: what was in memory before is gone when it changes.
    pub boot_id: u64,
    /// Number of the running operating system: who has the same can share memory.
    pub host_id: u64,
    /// Version of the placement that it knows; 0 for none.
    pub placement_version: u64,
    /// Name of the server in lists and logs.
    pub name: &'a str,
    /// Address on which clients of the same host reach it fastest, or empty.
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

/// Asks for a sign of life. With bytes both ways it also measures the way itself: a request and a reply of the size of
/// a pull without anything being looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping<'a> {
    /// Bytes that the reply is to have.
    pub reply_bytes: u32,
    /// Anything.
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

/// Answer to [`Ping`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pong<'a> {
    /// Does the server take new work? False while it starts or drains.
    pub serving: bool,
    /// As many bytes as were asked for, of any content.
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

/// Notice of the server, or of either side after an error of framing: no new requests on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goaway<'a> {
    /// Milliseconds for which requests that were already sent are still answered.
    pub closing_in_ms: u32,
    /// Why, for people. Cut at [`REASON_BYTES_MAX`] when it is written.
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
