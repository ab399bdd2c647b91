//! To which part of the work a function belongs, by its name. Knows no sample.

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// What belongs to it.
    pub(super) about: &'static str,
}

pub(super) const RPC: usize = 0;
const PARSE: usize = 1;
const TABLE: usize = 2;
const COMPUTE: usize = 3;
pub(super) const OTHER: usize = 4;

pub(super) const PARTS: [Part; 5] = [
    Part {
        name: "rpc",
        about: "messages to servers: crates wire and transport, the client's exchange, their libraries",
    },
    Part { name: "parse", about: "from text to batches: crates sample and hub" },
    Part { name: "table", about: "rows: crates store and meet, and which keys are asked for" },
    Part { name: "compute", about: "model, optimizer, workers, metrics: crates learner and job" },
    Part { name: "other", about: "everything else" },
];

/// Modules of the client that are there for servers alone; what tables in this process need, too, is not among them.
const CLIENT_OF_SERVERS: [&str; 13] = [
    "ahead",
    "cluster",
    "exchange",
    "fan",
    "fed",
    "links",
    "packing",
    "pipeline",
    "placement",
    "remote",
    "session",
    "statistics",
    "stop",
];
/// Libraries that nobody but messages to servers use here.
const RPC_LIBRARIES: [&str; 11] = [
    "tonic",
    "h2",
    "hyper",
    "hyper_util",
    "prost",
    "tower",
    "tokio",
    "tokio_rustls",
    "rustls",
    "ring",
    "mio",
];

/// The part of a function; none for libraries that serve all parts: what they do belongs to whoever called them.
pub(super) fn part(function: &str) -> Option<usize> {
    let (home, module) = home(function);
    if RPC_LIBRARIES.contains(&home) {
        return Some(RPC);
    }
    Some(match home.strip_prefix("sanderling_")? {
        "wire" | "transport" => RPC,
        "client" if CLIENT_OF_SERVERS.contains(&module) => RPC,
        "client" if function.contains("sanderling_client::step::servers") => RPC,
        "sample" | "hub" => PARSE,
        "store" | "meet" | "client" => TABLE,
        "learner" | "job" => COMPUTE,
        _ => OTHER,
    })
}

/// The crate and the module that a demangled name begins with: that of the type, for a method; that of the trait, for one of
/// a type of the language.
fn home(function: &str) -> (&str, &str) {
    let mut name = function;
    loop {
        let shorter = name.trim_start_matches(['<', '&', '*', '[', '(', ' ']);
        let shorter = ["mut ", "const ", "dyn "]
            .iter()
            .fold(shorter, |name, word| name.strip_prefix(word).unwrap_or(name));
        if shorter.len() == name.len() {
            break;
        }
        name = shorter;
    }
    let word = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (first, rest) = name.split_at(word(name));
    match rest.strip_prefix("::") {
        Some(rest) => (first, &rest[..word(rest)]),
        None => match function.split_once(" as ") {
            Some((_, of_trait)) => home(of_trait),
            None => (first, ""),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_where_they_are_from() {
        for (function, expected) in [
            ("sanderling_wire::codec::encode", Some(RPC)),
            ("<sanderling_transport::poller::Poller>::wait", Some(RPC)),
            ("<sanderling_client::links::Links as core::ops::drop::Drop>::drop", Some(RPC)),
            ("<sanderling_client::lookup::Lookup>::pull", Some(TABLE)),
            ("sanderling_client::shared_push::push_shared", Some(TABLE)),
            ("<sanderling_client::step::here::Meeting>::wait", Some(TABLE)),
            ("<sanderling_client::step::servers::Servers>::wait", Some(RPC)),
            ("tokio::runtime::park::Inner::park", Some(RPC)),
            ("<&mut sanderling_sample::libsvm::Rows>::next", Some(PARSE)),
            ("<f32 as sanderling_store::update::kernel::Number>::add", Some(TABLE)),
            ("sanderling_learner::worker::run::{closure#0}", Some(COMPUTE)),
            ("sanderling_job::exchange::sort", Some(COMPUTE)),
            ("sanderling_cli::run", Some(OTHER)),
            ("core::ptr::drop_in_place::<sanderling_wire::frame::Frame>", None),
            ("<alloc::vec::Vec<sanderling_wire::X> as core::clone::Clone>::clone", None),
            ("__memcpy_avx512_unaligned_erms", None),
            ("[libc.so.6]", None),
            ("", None),
        ] {
            assert_eq!(part(function), expected, "{function}");
        }
    }
}
