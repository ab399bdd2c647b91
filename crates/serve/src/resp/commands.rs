//! The commands of Redis that are answered: GET and MGET of rows, and those by which clients begin.

use sanderling_sample::Field;

use crate::catalog::Models;
use crate::error::{Kind, ServeError, quoted};
use crate::lookup::{Found, Items};

/// A version of the protocol, which decides the form of some answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Resp2,
    Resp3,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    /// Facts about the server.
    Hello,
    Simple(&'static str),
    Error(String),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    /// Rows as bulk strings, in a list unless only one was asked for.
    Rows(Vec<Found>, IsSingle),
}

/// Whether an answer is one row, not a list.
type IsSingle = bool;

impl Reply {
    /// Appends the bytes of the answer.
    pub(crate) fn write(&self, to: &mut Vec<u8>, version: Version) {
        match self {
            Reply::Hello => to.extend(hello(version).bytes()),
            Reply::Simple(text) => to.extend(format!("+{text}\r\n").bytes()),
            Reply::Error(text) => to.extend(format!("-{text}\r\n").bytes()),
            Reply::Bulk(bytes) => {
                to.extend(format!("${}\r\n", bytes.len()).bytes());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Reply::Array(replies) => {
                to.extend(format!("*{}\r\n", replies.len()).bytes());
                replies.iter().for_each(|reply| reply.write(to, version));
            }
            Reply::Rows(found, is_single) => {
                if !is_single {
                    to.extend(format!("*{}\r\n", found.iter().map(Found::len).sum::<usize>()).bytes());
                }
                found.iter().for_each(|found| write_rows(found, to, version));
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

/// The answer to HELLO: names and values, as Redis has them.
fn hello(version: Version) -> String {
    let (head, number) = match version {
        Version::Resp2 => ("*14", 2),
        Version::Resp3 => ("%7", 3),
    };
    let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let pair = |name: &str, value: &str| text(name) + &text(value);
    [
        format!("{head}\r\n"),
        pair("server", "sanderling"),
        pair("version", env!("CARGO_PKG_VERSION")),
        text("proto") + &format!(":{number}\r\n"),
        text("id") + ":0\r\n",
        pair("mode", "standalone"),
        pair("role", "replica"),
        text("modules") + "*0\r\n",
    ]
    .concat()
}

/// Appends rows as bulk strings of little-endian 32-bit floats.
fn write_rows(found: &Found, to: &mut Vec<u8>, version: Version) {
    let nil: &[u8] = match version {
        Version::Resp2 => b"$-1\r\n",
        Version::Resp3 => b"_\r\n",
    };
    let head = format!("${}\r\n", found.dim * size_of::<f32>());
    to.reserve(found.len() * (head.len() + found.dim * size_of::<f32>() + 2));
    let mut absent = found.absent.iter().peekable();
    for (at, weights) in (0_u32..).zip(found.weights.chunks_exact(found.dim)) {
        if absent.next_if_eq(&&at).is_some() {
            to.extend_from_slice(nil);
            continue;
        }
        to.extend_from_slice(head.as_bytes());
        to.extend_from_slice(bytemuck::cast_slice(weights));
        to.extend_from_slice(b"\r\n");
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
    /// Checks the token, if there is one, and speaks a version from then on, or the present one.
    Hello(Option<Version>, Option<Vec<u8>>),
    /// Looks rows up.
    Rows(Rows),
}

/// Rows that a command asks for.
#[derive(Debug, PartialEq)]
pub(crate) struct Rows {
    /// All keys, one after the other.
    text: Vec<u8>,
    /// The end of each.
    ends: Vec<usize>,
    is_single: IsSingle,
}

impl Rows {
    fn new(keys: &[&[u8]], is_single: IsSingle) -> Rows {
        let mut end = 0;
        let add = |key: &&[u8]| {
            end += key.len();
            end
        };
        Rows { ends: keys.iter().map(add).collect(), text: keys.concat(), is_single }
    }

    fn keys(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.text[*start..*end]).collect()
    }
}

/// Decides about a command, which is not empty.
pub(crate) fn action(words: &[&[u8]]) -> Action {
    let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    let arguments = words.get(1..).unwrap_or_default();
    let wrong_count = || {
        let name = String::from_utf8_lossy(&name).to_lowercase();
        Action::Reply(Reply::Error(format!("ERR wrong number of arguments for '{name}' command")))
    };
    match (&*name, arguments) {
        (b"GET", [_]) => Action::Rows(Rows::new(arguments, true)),
        (b"MGET", [_, ..]) => Action::Rows(Rows::new(arguments, false)),
        (b"PING", []) => Action::Reply(Reply::Simple("PONG")),
        (b"PING" | b"ECHO", [text]) => Action::Reply(Reply::Bulk(text.to_vec())),
        // With a user name before the token, or without.
        (b"AUTH", [token] | [_, token]) => Action::Login(token.to_vec()),
        (b"HELLO", arguments) => hello_action(arguments),
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
            let text = format!(
                "ERR unknown command {name}; there are GET, MGET, PING, ECHO, HELLO, AUTH, SELECT, QUIT"
            );
            Action::Reply(Reply::Error(text))
        }
    }
}

/// Decides about HELLO: a version, then the token and a name, which does not matter.
fn hello_action(arguments: &[&[u8]]) -> Action {
    let error = |text: &str| Action::Reply(Reply::Error(text.to_owned()));
    let (version, mut rest) = match arguments {
        [] => (None, arguments),
        [b"2", rest @ ..] => (Some(Version::Resp2), rest),
        [b"3", rest @ ..] => (Some(Version::Resp3), rest),
        _ => return error("NOPROTO unsupported protocol version: this server has RESP2 and RESP3"),
    };
    let mut token = None;
    loop {
        rest = match rest {
            [] => return Action::Hello(version, token),
            [option, _, given, after @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                token = Some(given.to_vec());
                after
            }
            [option, _, after @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => after,
            _ => return error("ERR Syntax error in HELLO"),
        };
    }
}

/// Looks rows up by keys such as `user:u17`: a table, and a value of its feature. Rows are little-endian 32-bit floats.
pub(crate) fn rows(models: &Models, rows: &Rows, asked: &crate::work::Asked) -> Result<Reply, ServeError> {
    let model = models.find("", "")?;
    asked.of(&model);
    let keys = rows.keys();
    asked.check_keys(keys.len())?;
    asked.count_rows(keys.len());
    let (mut found, mut rest) = (Vec::new(), &*keys);
    // Keys of one table mostly stand together, and share its encoder.
    while let Some(first) = rest.first() {
        let table = table_of(first)?;
        let run = rest
            .iter()
            .take_while(|key| key.starts_with(table.as_bytes()) && key.get(table.len()) == Some(&b':'));
        let (keys, after) = rest.split_at(run.count().max(1));
        let found_in = model.table(table)?;
        let mut items = Items::default();
        let values = keys.iter().map(|key| Field::Text(&key[table.len() + 1..]));
        items.add_values(&model, table, "", values)?;
        found.push(items.rows(found_in)?);
        rest = after;
    }
    Ok(Reply::Rows(found, rows.is_single))
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
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
            Action::Rows(Rows::new(&keys, is_single))
        };
        let error = |text: &str| Action::Reply(Reply::Error(text.to_owned()));
        check("get user:1", rows(&["user:1"], true));
        check("MGET user:1 item:2", rows(&["user:1", "item:2"], false));
        check("MGET", error("ERR wrong number of arguments for 'mget' command"));
        check("ping", Action::Reply(Reply::Simple("PONG")));
        check("PING x", Action::Reply(Reply::Bulk(b"x".to_vec())));
        check("AUTH secret", Action::Login(b"secret".to_vec()));
        check("AUTH default secret", Action::Login(b"secret".to_vec()));
        check("HELLO", Action::Hello(None, None));
        check("hello 2", Action::Hello(Some(Version::Resp2), None));
        let token = Some(b"secret".to_vec());
        check("HELLO 3 AUTH default secret SETNAME me", Action::Hello(Some(Version::Resp3), token));
        check("HELLO 3 AUTH secret", error("ERR Syntax error in HELLO"));
        let versions = "NOPROTO unsupported protocol version: this server has RESP2 and RESP3";
        check("HELLO 4", error(versions));
        check("COMMAND DOCS", Action::Reply(Reply::Array(Vec::new())));
        check("CLIENT SETINFO LIB-NAME x", Action::Reply(Reply::Simple("OK")));
        check("SELECT 1", error("ERR DB index is out of range"));
        check("QUIT", Action::Close(Reply::Simple("OK")));
        check(
            "SET a b",
            error("ERR unknown command \"SET\"; there are GET, MGET, PING, ECHO, HELLO, AUTH, SELECT, QUIT"),
        );
    }

    #[test]
    fn answers_are_written_as_redis_does() {
        let found = Found { dim: 2, weights: vec![0.0, 0.0, 1.0, -2.0], absent: vec![0] };
        let all = [
            Reply::Simple("OK"),
            Reply::Error("ERR no".to_owned()),
            Reply::Array(vec![Reply::Bulk(b"a\r\n".to_vec())]),
            Reply::Rows(vec![found.clone(), found.clone()], false),
            Reply::Rows(vec![Found { weights: vec![0.0; 2], ..found }], true),
        ];
        let written = |version| {
            let mut bytes = Vec::new();
            all.iter().for_each(|reply| reply.write(&mut bytes, version));
            bytes
        };
        let rows = b"$-1\r\n$8\r\n\0\0\x80\x3f\0\0\0\xc0\r\n";
        let plain = b"+OK\r\n-ERR no\r\n*1\r\n$3\r\na\r\n\r\n";
        assert_eq!(written(Version::Resp2), [plain, &b"*4\r\n"[..], rows, rows, b"$-1\r\n"].concat());
        let rows = b"_\r\n$8\r\n\0\0\x80\x3f\0\0\0\xc0\r\n";
        assert_eq!(written(Version::Resp3), [plain, &b"*4\r\n"[..], rows, rows, b"_\r\n"].concat());
        assert!(hello(Version::Resp2).starts_with("*14\r\n$6\r\nserver\r\n$10\r\nsanderling\r\n"));
        assert!(
            hello(Version::Resp3).starts_with("%7\r\n") && hello(Version::Resp3).contains("proto\r\n:3\r\n")
        );
    }
}
