//! Minibatches of a hub: subscribing, taking the next one, acknowledging, and unsubscribing.

use crate::WireError;
use crate::limit::{
    COLUMNS_MAX, FRAME_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX, SERVERS_MAX, UNACKNOWLEDGED_MAX,
};
use crate::reader::Reader;
use crate::writer::{Writer, agree};

/// Encodes that the trainer has no rank.
const NO_RANK: u32 = u32::MAX;

/// The first request of a trainer on every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// Name of the trainer, constant over restarts.
    pub trainer: &'a str,
    /// Changes with every start of the trainer.
    pub instance: u64,
    /// The stream of the trainer's minibatches, as in [`Subscribed`]. 0 before the first reply.
    pub stream: u64,
    /// Requested number of unacknowledged minibatches.
    pub window: u32,
    /// Index among trainers that take minibatches in turn, if any.
    pub rank: Option<u32>,
    /// Numbers of the trainer's minibatches whose acknowledgement was not answered. The hub hands out its other ones
    /// again.
    pub held: &'a [u64],
}

impl<'a> Subscribe<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.instance);
        out.u64(self.stream);
        out.u32(self.window);
        out.u32(self.rank.unwrap_or(NO_RANK));
        write_numbers("held", self.held, out)?;
        out.text("trainer", self.trainer, NAME_BYTES_MAX)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Subscribe<'a>, WireError> {
        let (instance, stream) = (from.u64("instance")?, from.u64("stream")?);
        let (window, rank) = (from.u32("window")?, from.u32("rank")?);
        let held = read_numbers("held", from)?;
        let trainer = from.text("trainer", NAME_BYTES_MAX)?;
        Ok(Subscribe { trainer, instance, stream, window, rank: (rank != NO_RANK).then_some(rank), held })
    }
}

/// A feature of the minibatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// Name of the feature.
    pub name: &'a str,
    /// Whether each key has a value.
    pub weighted: bool,
}

impl Column<'_> {
    /// Length with an empty name.
    const BYTES_MIN: usize = 16;
}

/// Reply to [`Subscribe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed<'a> {
    /// Identifies the numbering of minibatches. If it differs from the trainer's, the trainer is not subscribed: its
    /// minibatches are of an earlier start of the hub, and the hub did not know the position.
    pub stream: u64,
    /// Number of passes over the input.
    pub passes: u64,
    /// Rows of a minibatch. The last one of a pass may have fewer.
    pub rows: u32,
    /// Granted number of unacknowledged minibatches.
    pub window: u32,
    /// A minibatch is for the trainer whose rank is its number modulo this. 0: for any trainer.
    pub stride: u32,
    /// Numbers among `held` that no longer belong to this trainer.
    pub late: &'a [u64],
    /// The features in column order.
    pub columns: Vec<Column<'a>>,
}

impl<'a> Subscribed<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.stream);
        out.u64(self.passes);
        out.u32(self.rows);
        out.u32(self.window);
        out.u32(self.stride);
        write_numbers("late", self.late, out)?;
        out.count("columns", self.columns.len(), COLUMNS_MAX)?;
        out.pad();
        for column in &self.columns {
            out.u8(column.weighted.into());
            out.pad();
            out.text("name of a column", column.name, NAME_BYTES_MAX)?;
        }
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Subscribed<'a>, WireError> {
        let (stream, passes) = (from.u64("stream")?, from.u64("passes")?);
        let (rows, window, stride) = (from.u32("rows")?, from.u32("window")?, from.u32("stride")?);
        let late = read_numbers("late", from)?;
        let count = from.list("columns", COLUMNS_MAX, Column::BYTES_MIN)?;
        from.pad("columns")?;
        let mut columns = Vec::with_capacity(count);
        for _ in 0..count {
            let weighted = from.bool("weighted")?;
            from.pad("weighted")?;
            columns.push(Column { name: from.text("name of a column", NAME_BYTES_MAX)?, weighted });
        }
        Ok(Subscribed { stream, passes, rows, window, stride, late, columns })
    }
}

/// Acknowledges minibatches and requests the next one. It may be repeated unchanged: repeated acknowledgements have no
/// effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next<'a> {
    /// Whether a minibatch is wanted. Otherwise the request only acknowledges.
    pub wanted: bool,
    /// Numbers of acknowledged minibatches.
    pub used: &'a [u64],
}

impl<'a> Next<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u8(self.wanted.into());
        out.pad();
        write_numbers("used", self.used, out)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Next<'a>, WireError> {
        let wanted = from.bool("wanted")?;
        from.pad("wanted")?;
        Ok(Next { wanted, used: read_numbers("used", from)? })
    }
}

/// Reply to [`Next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextReply<'a> {
    /// Acknowledged numbers that another trainer had received meanwhile. They do not count.
    pub late: &'a [u64],
    /// The minibatch, or why there is none.
    pub outcome: Outcome<'a>,
}

/// The result of a request for a minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// A minibatch.
    Batch {
        /// Index of its pass.
        pass: u64,
        /// Its number over all passes, from 0.
        number: u64,
        /// Number of rows.
        rows: u32,
        /// Packed columns, aligned to 8 bytes.
        payload: &'a [u8],
    },
    /// No minibatch is ready, or the trainer's window is full.
    Wait {
        /// Suggested delay before another request.
        retry_after_us: u64,
    },
    /// All passes have ended and every minibatch was acknowledged.
    Over,
    /// The hub failed.
    Failed {
        /// The reason, for people. Encoding cuts it at [`REASON_BYTES_MAX`].
        reason: &'a str,
    },
    /// None was wanted, or the named minibatch is not this trainer's.
    Nothing,
    /// A minibatch without the keys that the hub has fed to the parameter servers. Only for trainers that negotiated
    /// [`Features::FED`](crate::Features::FED).
    Fed {
        /// Index of its pass.
        pass: u64,
        /// Its number over all passes, from 0.
        number: u64,
        /// Number of rows.
        rows: u32,
        /// Packed columns, aligned to 8 bytes. Fed columns have no keys.
        payload: &'a [u8],
        /// The fed columns.
        ahead: Ahead<'a>,
    },
}

/// The columns that a hub has fed to parameter servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead<'a> {
    /// Number of the batch at the servers. The number of a feature there is its column's.
    pub batch: u64,
    /// Time since it was fed, by the hub's clock. Servers do not keep it forever.
    pub age_us: u64,
    /// Version of the placement by which the keys were shared out.
    pub placement_version: u64,
    /// The fed columns, ascending.
    pub columns: &'a [u32],
    /// Number of servers.
    pub servers: u32,
    /// Keys per column and server, including repetitions: [columns, servers].
    pub keys: &'a [u32],
}

impl<'a> Ahead<'a> {
    fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.batch);
        out.u64(self.age_us);
        out.u64(self.placement_version);
        out.count("fed columns", self.columns.len(), COLUMNS_MAX)?;
        out.count("servers", self.servers as usize, SERVERS_MAX)?;
        out.slice(self.columns);
        agree("keys of fed columns", self.columns.len() * self.servers as usize, self.keys.len())?;
        out.slice(self.keys);
        Ok(())
    }

    fn read(from: &mut Reader<'a>) -> Result<Ahead<'a>, WireError> {
        let (batch, age_us) = (from.u64("batch")?, from.u64("age_us")?);
        let placement_version = from.u64("placement version")?;
        let count = from.count("fed columns", COLUMNS_MAX)?;
        let servers = from.count("servers", SERVERS_MAX)?;
        let columns: &[u32] = from.slice("fed columns", count)?;
        if let Some(pair) = columns.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(WireError::Value { what: "fed columns", found: pair[1].into() });
        }
        let keys = from.slice("keys of fed columns", count * servers)?;
        Ok(Ahead { batch, age_us, placement_version, columns, servers: servers as u32, keys })
    }
}

/// Requests a whole minibatch that this trainer has, with the fed keys. The outcome is the minibatch, a wait while it
/// is being read again, or nothing if it is no longer this trainer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Number of the minibatch.
    pub number: u64,
}

impl Keys {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.number);
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Keys, WireError> {
        Ok(Keys { number: from.u64("number")? })
    }

    /// The reply has the form of [`Next`]'s, without late numbers.
    pub(crate) fn read_reply<'a>(from: &mut Reader<'a>) -> Result<Outcome<'a>, WireError> {
        let NextReply { late, outcome } = NextReply::read(from)?;
        match late {
            [] => Ok(outcome),
            _ => Err(WireError::Value { what: "late", found: late.len() as u64 }),
        }
    }
}

impl<'a> NextReply<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let code = match self.outcome {
            Outcome::Batch { .. } => 0,
            Outcome::Wait { .. } => 1,
            Outcome::Over => 2,
            Outcome::Failed { .. } => 3,
            Outcome::Nothing => 4,
            Outcome::Fed { .. } => 5,
        };
        out.u8(code);
        out.pad();
        write_numbers("late", self.late, out)?;
        match self.outcome {
            Outcome::Batch { pass, number, rows, payload } => {
                out.u64(pass);
                out.u64(number);
                out.u32(rows);
                out.count("payload", payload.len(), FRAME_BYTES_MAX)?;
                out.slice(payload);
            }
            Outcome::Wait { retry_after_us } => out.u64(retry_after_us),
            Outcome::Fed { pass, number, rows, payload, ahead } => {
                out.u64(pass);
                out.u64(number);
                out.u32(rows);
                out.count("payload", payload.len(), FRAME_BYTES_MAX)?;
                ahead.write(out)?;
                out.slice(payload);
            }
            Outcome::Failed { reason } => out.reason(reason)?,
            Outcome::Over | Outcome::Nothing => {}
        }
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<NextReply<'a>, WireError> {
        let code = from.u8("outcome")?;
        from.pad("outcome")?;
        let late = read_numbers("late", from)?;
        let outcome = match code {
            0 => {
                let (pass, number) = (from.u64("pass")?, from.u64("number")?);
                let rows = from.u32("rows")?;
                let bytes = from.count("payload", FRAME_BYTES_MAX)?;
                Outcome::Batch { pass, number, rows, payload: from.slice("payload", bytes)? }
            }
            1 => Outcome::Wait { retry_after_us: from.u64("retry_after_us")? },
            2 => Outcome::Over,
            3 => Outcome::Failed { reason: from.text("reason", REASON_BYTES_MAX)? },
            4 => Outcome::Nothing,
            5 => {
                let (pass, number) = (from.u64("pass")?, from.u64("number")?);
                let rows = from.u32("rows")?;
                let bytes = from.count("payload", FRAME_BYTES_MAX)?;
                let ahead = Ahead::read(from)?;
                Outcome::Fed { pass, number, rows, payload: from.slice("payload", bytes)?, ahead }
            }
            other => return Err(WireError::Value { what: "outcome", found: other.into() }),
        };
        Ok(NextReply { late, outcome })
    }
}

/// Unsubscribes a trainer. Its remaining minibatches go to other trainers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave<'a> {
    /// Numbers of acknowledged minibatches.
    pub used: &'a [u64],
}

impl<'a> Leave<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        write_numbers("used", self.used, out)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Leave<'a>, WireError> {
        Ok(Leave { used: read_numbers("used", from)? })
    }
}

/// Reply to [`Leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left<'a> {
    /// Acknowledged numbers that another trainer had received meanwhile. They do not count.
    pub late: &'a [u64],
}

impl<'a> Left<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        write_numbers("late", self.late, out)
    }

    pub(crate) fn read(from: &mut Reader<'a>) -> Result<Left<'a>, WireError> {
        Ok(Left { late: read_numbers("late", from)? })
    }
}

fn write_numbers(what: &'static str, numbers: &[u64], out: &mut Writer<'_>) -> Result<(), WireError> {
    out.count(what, numbers.len(), UNACKNOWLEDGED_MAX)?;
    out.pad();
    out.slice(numbers);
    Ok(())
}

fn read_numbers<'a>(what: &'static str, from: &mut Reader<'a>) -> Result<&'a [u64], WireError> {
    let count = from.count(what, UNACKNOWLEDGED_MAX)?;
    from.pad(what)?;
    from.slice(what, count)
}
