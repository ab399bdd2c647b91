//! Minibatches from a hub: subscribing to them, taking the next one, saying which were used up, and farewell. Knows no hub,
//! and not what is in a minibatch.

use crate::WireError;
use crate::limit::{
    COLUMNS_MAX, FRAME_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX, SERVERS_MAX, UNACKNOWLEDGED_MAX,
};
use crate::reader::Reader;
use crate::writer::{Writer, agree};

/// Instead of a rank: the trainer has none.
const NO_RANK: u32 = u32::MAX;

/// The first request of a trainer, on every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// Name of the trainer, the same over its restarts.
    pub trainer: &'a str,
    /// Another one with every start of the trainer.
    pub instance: u64,
    /// The stream that it has minibatches of, as in [`Subscribed`]; 0 before the first answer.
    pub stream: u64,
    /// Minibatches that it wants to have and not have acknowledged at a time.
    pub window: u32,
    /// Its place among trainers that take minibatches in turn, if they do.
    pub rank: Option<u32>,
    /// Numbers of the minibatches that it has and whose acknowledgement has not been answered. What else the hub has handed
    /// to it is handed out again.
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
    /// Its name.
    pub name: &'a str,
    /// Has each key a value?
    pub weighted: bool,
}

impl Column<'_> {
    /// With an empty name.
    const BYTES_MIN: usize = 16;
}

/// Answer to [`Subscribe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribed<'a> {
    /// Which numbering of minibatches it is. When it is not the one that the trainer named, the trainer is not subscribed:
    /// its minibatches are of another start of the hub, which did not know where to go on.
    pub stream: u64,
    /// Passes over the input.
    pub passes: u64,
    /// Rows of a minibatch; the last one of a pass may have fewer.
    pub rows: u32,
    /// What was granted of the window.
    pub window: u32,
    /// A minibatch is for the trainer whose rank is its number modulo this; 0: for any.
    pub stride: u32,
    /// Numbers among those held that are not this trainer's any more.
    pub late: &'a [u64],
    /// The features, in the order in which minibatches have them.
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

/// Says what was used up, and asks for the next minibatch. May be sent again as it is: a number that this trainer has
/// acknowledged before is no news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next<'a> {
    /// Whether a minibatch is wanted; else it is only about the others.
    pub wanted: bool,
    /// Numbers of minibatches that were used up.
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

/// Answer to [`Next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextReply<'a> {
    /// Numbers among those used up that had been given to another trainer meanwhile: they do not count.
    pub late: &'a [u64],
    /// The minibatch, or why there is none.
    pub outcome: Outcome<'a>,
}

/// What a hub has for a trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// A minibatch.
    Batch {
        /// The pass that it is of, from 0.
        pass: u64,
        /// Its number among all of the hub's, over all passes, from 0.
        number: u64,
        /// Its rows.
        rows: u32,
        /// Its columns, packed; starts at a multiple of 8 bytes.
        payload: &'a [u8],
    },
    /// None is ready, or the trainer has as many as it may have.
    Wait {
        /// When it is worth asking again.
        retry_after_us: u64,
    },
    /// All passes have ended, and every minibatch was acknowledged by somebody.
    Over,
    /// The hub cannot go on.
    Failed {
        /// Why, for people. Cut at [`REASON_BYTES_MAX`] when it is written.
        reason: &'a str,
    },
    /// None was wanted; of a minibatch that was named: it is not this trainer's.
    Nothing,
    /// A minibatch some of whose columns have no keys here: the hub has fed them to the parameter servers. Only to trainers
    /// that have agreed on [`Features::FED`](crate::Features::FED).
    Fed {
        /// The pass that it is of, from 0.
        pass: u64,
        /// Its number among all of the hub's, over all passes, from 0.
        number: u64,
        /// Its rows.
        rows: u32,
        /// Its columns, packed, those that were fed without keys; starts at a multiple of 8 bytes.
        payload: &'a [u8],
        /// What was fed.
        ahead: Ahead<'a>,
    },
}

/// What a hub has fed to parameter servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead<'a> {
    /// The number by which the servers know the batch; a feature's number there is that of its column.
    pub batch: u64,
    /// How long ago it was fed, by the hub's clock: servers do not keep it for ever.
    pub age_us: u64,
    /// The columns that were fed, ascending.
    pub columns: &'a [u32],
    /// How many servers there are.
    pub servers: u32,
    /// Per column, how many keys each server got, repetitions included: [columns, servers].
    pub keys: &'a [u32],
}

impl<'a> Ahead<'a> {
    fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.u64(self.batch);
        out.u64(self.age_us);
        out.count("fed columns", self.columns.len(), COLUMNS_MAX)?;
        out.count("servers", self.servers as usize, SERVERS_MAX)?;
        out.slice(self.columns);
        agree("keys of fed columns", self.columns.len() * self.servers as usize, self.keys.len())?;
        out.slice(self.keys);
        Ok(())
    }

    fn read(from: &mut Reader<'a>) -> Result<Ahead<'a>, WireError> {
        let (batch, age_us) = (from.u64("batch")?, from.u64("age_us")?);
        let count = from.count("fed columns", COLUMNS_MAX)?;
        let servers = from.count("servers", SERVERS_MAX)?;
        let columns: &[u32] = from.slice("fed columns", count)?;
        if let Some(pair) = columns.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(WireError::Value { what: "fed columns", found: pair[1].into() });
        }
        let keys = from.slice("keys of fed columns", count * servers)?;
        Ok(Ahead { batch, age_us, columns, servers: servers as u32, keys })
    }
}

/// Asks for a minibatch that this trainer has, whole: with the keys that were fed. The answer is an [`Outcome`]: the
/// minibatch; wait, as it is being made once more; or nothing, as it is not this trainer's any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Its number.
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

    /// The answer has the form of that to [`Next`], in which nothing is late.
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

/// A trainer's farewell: what else it has is anybody's from now on, and it is not subscribed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave<'a> {
    /// Numbers of minibatches that were used up.
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

/// Answer to [`Leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left<'a> {
    /// Numbers among those used up that had been given to another trainer meanwhile: they do not count.
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
