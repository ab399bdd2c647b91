//! The commands of Redis that are answered: GET and MGET of rows, and those by which clients begin.

use crate::catalog::Models;
use crate::error::{Kind, ServeError, quoted};
use crate::lookup;

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Simple(&'static str),
    Error(String),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
}

impl Reply {
    /// Appends the bytes of the answer.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        match self {
            Reply::Simple(text) => to.extend(format!("+{text}\r\n").bytes()),
            Reply::Error(text) => to.extend(format!("-{text}\r\n").bytes()),
            Reply::Bulk(bytes) => {
                to.extend(format!("${}\r\n", bytes.len()).bytes());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Reply::Nil => to.extend_from_slice(b"$-1\r\n"),
            Reply::Array(replies) => {
                to.extend(format!("*{}\r\n", replies.len()).bytes());
                replies.iter().for_each(|reply| reply.write(to));
            }
        }
    }

    /// An error with the code that clients of Redis know.
    pub(crate) fn of_error(error: &ServeError) -> Reply {
        let code = match error.kind {
            Kind::NotReady => "LOADING",
            Kind::Overloaded | Kind::DeadlineExceeded => "BUSY",
            _ => "ERR",
        };
        Reply::Error(format!("{code} {error}"))
    }
}

/// The action of a connection on a command.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Answers at once.
    Reply(Reply),
    /// Answers and closes.
    Close(Reply),
    /// Checks the token.
    Login(Vec<u8>),
    /// Looks rows up.
    Rows(Rows),
}

/// Rows that a command asks for.
#[derive(Debug, PartialEq)]
pub(crate) struct Rows {
    pub(crate) keys: Vec<Vec<u8>>,
    /// Whether the answer is one row, not a list.
    is_single: bool,
}

/// Decides about a command, which is not empty.
pub(crate) fn action(words: &[&[u8]]) -> Action {
    let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    let arguments = words.get(1..).unwrap_or_default();
    let wrong_count = || {
        let name = String::from_utf8_lossy(&name).to_lowercase();
        Action::Reply(Reply::Error(format!("ERR wrong number of arguments for '{name}' command")))
    };
    let keys = || arguments.iter().map(|key| key.to_vec()).collect();
    match (&*name, arguments) {
        (b"GET", [_]) => Action::Rows(Rows { keys: keys(), is_single: true }),
        (b"MGET", [_, ..]) => Action::Rows(Rows { keys: keys(), is_single: false }),
        (b"PING", []) => Action::Reply(Reply::Simple("PONG")),
        (b"PING" | b"ECHO", [text]) => Action::Reply(Reply::Bulk(text.to_vec())),
        // With a user name before the token, or without.
        (b"AUTH", [token] | [_, token]) => Action::Login(token.to_vec()),
        (b"HELLO", _) => Action::Reply(Reply::Error(
            "NOPROTO unsupported protocol version: this server has RESP2".to_owned(),
        )),
        (b"SELECT", [b"0"]) | (b"CLIENT", [_, ..]) => Action::Reply(Reply::Simple("OK")),
        (b"SELECT", [_]) => Action::Reply(Reply::Error("ERR DB index is out of range".to_owned())),
        // Clients ask for these at their start, and do without.
        (b"COMMAND", _) | (b"CONFIG", [_, ..]) => Action::Reply(Reply::Array(Vec::new())),
        // A web page can post a form here, and its lines would be commands.
        (b"POST" | b"HOST:", _) => Action::Close(Reply::Error("ERR this is not an HTTP port".to_owned())),
        (b"QUIT", _) => Action::Close(Reply::Simple("OK")),
        (b"GET" | b"MGET" | b"PING" | b"ECHO" | b"AUTH" | b"SELECT" | b"CLIENT" | b"CONFIG", _) => {
            wrong_count()
        }
        _ => {
            let name = quoted(&String::from_utf8_lossy(words.first().copied().unwrap_or_default()));
            let text =
                format!("ERR unknown command {name}; there are GET, MGET, PING, ECHO, AUTH, SELECT, QUIT");
            Action::Reply(Reply::Error(text))
        }
    }
}

/// Looks rows up by keys such as `user:u17`: a table, and a value of its feature. Rows are little-endian 32-bit floats.
pub(crate) fn rows(models: &Models, rows: &Rows, asked: &crate::work::Asked) -> Result<Reply, ServeError> {
    let model = models.find("", "")?;
    asked.of(&model);
    let (count, max) = (rows.keys.len(), asked.batch_max);
    if count > max {
        return Err(ServeError::too_many(count, "keys", max));
    }
    asked.count_rows(count);
    let mut replies = Vec::with_capacity(count);
    let mut rest = &*rows.keys;
    // Keys of one table mostly stand together, and share its encoder.
    while let Some(first) = rest.first() {
        let table = table_of(first)?;
        let run = rest
            .iter()
            .take_while(|key| key.starts_with(table.as_bytes()) && key.get(table.len()) == Some(&b':'));
        let (keys, after) = rest.split_at(run.count().max(1));
        let values = keys.iter().map(|key| &key[table.len() + 1..]);
        lookup::weights_of(&model, table, values, |weights| {
            replies.push(weights.map_or(Reply::Nil, |weights| {
                Reply::Bulk(weights.iter().flat_map(|weight| weight.to_le_bytes()).collect())
            }));
        })?;
        rest = after;
    }
    Ok(match rows.is_single {
        true => replies.pop().unwrap_or(Reply::Nil),
        false => Reply::Array(replies),
    })
}

/// The table of a key.
fn table_of(key: &[u8]) -> Result<&str, ServeError> {
    let table = key.iter().position(|byte| *byte == b':').and_then(|at| std::str::from_utf8(&key[..at]).ok());
    table.ok_or_else(|| {
        let found = quoted(&String::from_utf8_lossy(key));
        ServeError::invalid(format!("a key is a table and a value, such as user:u17; found {found}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_action() {
        let check = |line: &str, expected: Action| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            assert_eq!(action(&words), expected, "{line}");
        };
        let rows = |keys: &[&str], is_single| {
            Action::Rows(Rows { keys: keys.iter().map(|key| key.as_bytes().to_vec()).collect(), is_single })
        };
        let error = |text: &str| Action::Reply(Reply::Error(text.to_owned()));
        check("get user:1", rows(&["user:1"], true));
        check("MGET user:1 item:2", rows(&["user:1", "item:2"], false));
        check("MGET", error("ERR wrong number of arguments for 'mget' command"));
        check("ping", Action::Reply(Reply::Simple("PONG")));
        check("PING x", Action::Reply(Reply::Bulk(b"x".to_vec())));
        check("AUTH secret", Action::Login(b"secret".to_vec()));
        check("AUTH default secret", Action::Login(b"secret".to_vec()));
        check("HELLO 3", error("NOPROTO unsupported protocol version: this server has RESP2"));
        check("COMMAND DOCS", Action::Reply(Reply::Array(Vec::new())));
        check("CLIENT SETINFO LIB-NAME x", Action::Reply(Reply::Simple("OK")));
        check("SELECT 1", error("ERR DB index is out of range"));
        check("QUIT", Action::Close(Reply::Simple("OK")));
        check(
            "SET a b",
            error("ERR unknown command \"SET\"; there are GET, MGET, PING, ECHO, AUTH, SELECT, QUIT"),
        );
    }

    #[test]
    fn answers_are_written_as_redis_does() {
        let all = [
            Reply::Simple("OK"),
            Reply::Error("ERR no".to_owned()),
            Reply::Array(vec![Reply::Bulk(b"a\r\n".to_vec()), Reply::Nil]),
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|reply| reply.write(&mut bytes));
        assert_eq!(bytes, b"+OK\r\n-ERR no\r\n*2\r\n$3\r\na\r\n\r\n$-1\r\n");
    }
}
