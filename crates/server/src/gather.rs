//! The choice between CPU and network card for the rows of a reply by RDMA: the CPU copies them, the card reads them from
//! where they lie. It knows no frame and no connection.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sanderling_store::{Table, TableConfig};
use sanderling_transport::ListenOptions;

use crate::Config;
use crate::event::Event;
use crate::refusal::Refusal;
use sanderling_wire::Fault;

#[cfg(feature = "rdma")]
pub(crate) mod cards;

/// The gatherer of a table's rows, as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gather {
    /// The network card, if a measurement says that it takes less than half of the CPU's time; otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The network card.
    Nic,
}

const NAMES: [(&str, Gather); 3] = [("auto", Gather::Auto), ("cpu", Gather::Cpu), ("nic", Gather::Nic)];

impl FromStr for Gather {
    type Err = String;

    fn from_str(text: &str) -> Result<Gather, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, gather)| *gather).ok_or_else(|| format!("{text:?} is none of auto, cpu and nic"))
    }
}

impl fmt::Display for Gather {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(NAMES.iter().find(|(_, gather)| gather == self).map_or("", |(name, _)| name))
    }
}

/// The gatherers of all tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GatherOptions {
    others: Gather,
    tables: Vec<(String, Gather)>,
}

impl GatherOptions {
    /// Reads texts such as `nic`, for all tables, and `users=nic`, for one.
    ///
    /// # Errors
    /// The text that is neither.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<GatherOptions, String> {
        let mut options = GatherOptions::default();
        for text in texts {
            match text.rsplit_once('=') {
                Some((table, way)) => options.tables.push((table.to_owned(), way.parse()?)),
                None => options.others = text.parse()?,
            }
        }
        Ok(options)
    }

    /// The gatherer of a table's rows, as configured.
    pub(crate) fn of(&self, table: &str) -> Gather {
        let named = self.tables.iter().rev().find(|(name, _)| name == table);
        named.map_or(self.others, |(_, gather)| *gather)
    }

    fn wants(&self, gather: Gather) -> bool {
        self.others == gather || self.tables.iter().any(|(_, other)| *other == gather)
    }

    /// Why a card cannot be wanted. `is_rdma`: the server listens at an address `rdma://`.
    pub(crate) fn problem(&self, is_rdma: bool) -> Option<String> {
        if !self.wants(Gather::Nic) {
            None
        } else if !cfg!(feature = "rdma") {
            Some(
                "gather nic: this program was built without RDMA; build it with the cargo feature `rdma`"
                    .to_owned(),
            )
        } else if !is_rdma {
            Some(
                "gather nic: only replies by RDMA are gathered by a card; listen at an rdma:// address"
                    .to_owned(),
            )
        } else {
            None
        }
    }

    /// Refuses a new table whose rows a card is to gather and cannot.
    pub(crate) fn check(&self, config: &TableConfig) -> Result<(), Refusal> {
        self.check_name(&config.name, config.not_held_because())
    }

    /// Refuses a table whose rows a card is to gather and cannot.
    pub(crate) fn check_table(&self, table: &Table) -> Result<(), Refusal> {
        self.check_name(table.name(), table.not_held_because())
    }

    fn check_name(&self, table: &str, not_held_because: Option<&str>) -> Result<(), Refusal> {
        let Some(because) = not_held_because.filter(|_| self.of(table) == Gather::Nic) else { return Ok(()) };
        let reason =
            format!("table {table:?} cannot be gathered by a network card (--gather nic): {because}");
        Err(Refusal::new(Fault::BadConfig, reason))
    }
}

/// The cards of a server, if any of its tables may be gathered by one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cards {
    /// Whether clients may connect by RDMA.
    #[cfg(feature = "rdma")]
    is_rdma: bool,
    #[cfg(feature = "rdma")]
    domain: Option<sanderling_transport::GatherDomain>,
}

impl Cards {
    pub(crate) fn of(config: &Config) -> Cards {
        #[cfg(feature = "rdma")]
        {
            let may_gather = config.gather.wants(Gather::Auto) || config.gather.wants(Gather::Nic);
            let is_rdma = config.listens_by_rdma();
            let domain = (may_gather && is_rdma).then(sanderling_transport::GatherDomain::default);
            Cards { is_rdma, domain }
        }
        #[cfg(not(feature = "rdma"))]
        {
            let _ = config;
            Cards {}
        }
    }

    /// Lets listeners accept connections whose card may gather.
    pub(crate) fn set(&self, options: &mut ListenOptions) {
        #[cfg(feature = "rdma")]
        options.gather.clone_from(&self.domain);
        let _ = options;
    }
}

/// The gatherer of a table's rows, and the measured times.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GatherStatus {
    /// `cpu` or `nic`. Empty: the server has no connections by RDMA.
    pub by: &'static str,
    /// Why it is so.
    pub because: String,
    /// Measured time of the CPU per row of a pull, in nanoseconds.
    pub cpu_ns_per_row: Option<f64>,
    /// Measured time of the card per row of a pull, in nanoseconds.
    pub nic_ns_per_row: Option<f64>,
    /// Pulls whose rows the card has gathered.
    pub nic_pulls: u64,
}

/// The way of one table.
#[derive(Debug)]
pub(crate) struct TableGather {
    #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "only cards ask"))]
    wanted: Gather,
    #[cfg(feature = "rdma")]
    cards: cards::TableCards,
}

impl TableGather {
    pub(crate) fn new(wanted: Gather, table: &Table) -> TableGather {
        let _ = table;
        TableGather {
            wanted,
            #[cfg(feature = "rdma")]
            cards: cards::TableCards::new(wanted, table.not_held_because()),
        }
    }

    /// Measures, when that is due, and decides. Returns what is new.
    pub(crate) fn look(&self, table: &Arc<Table>, cards: &Cards) -> Option<Event> {
        #[cfg(feature = "rdma")]
        if let Some(domain) = &cards.domain {
            return self.cards.look(self.wanted, table, domain);
        }
        let _ = (table, cards);
        None
    }

    pub(crate) fn status(&self, cards: &Cards) -> GatherStatus {
        #[cfg(feature = "rdma")]
        if cards.is_rdma {
            return self.cards.status(self.wanted);
        }
        let _ = cards;
        GatherStatus::default()
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn cards(&self) -> &cards::TableCards {
        &self.cards
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanderling_store::{Dtype, Init, Optimizer, Writes};

    #[test]
    fn options_are_for_one_table_or_all() {
        let parse = |texts: &[&str]| GatherOptions::parse(texts.iter().copied());
        let options = parse(&["cpu", "users=nic", "a=b=auto"]).expect("options");
        for (table, expected) in [("users", Gather::Nic), ("a=b", Gather::Auto), ("ads", Gather::Cpu)] {
            assert_eq!(options.of(table), expected, "{table}");
        }
        assert_eq!(parse(&[]).expect("none").of("users"), Gather::Auto);
        assert!(parse(&["users=card"]).expect_err("no way").contains("none of auto, cpu and nic"));
        for (texts, is_rdma, expected) in [
            (&["cpu"][..], false, None),
            (&["auto"], false, None),
            (&["users=nic"], true, (!cfg!(feature = "rdma")).then_some("cargo feature `rdma`")),
            (&["nic"], false, Some(if cfg!(feature = "rdma") { "rdma://" } else { "cargo feature `rdma`" })),
        ] {
            let problem = parse(texts).expect("options").problem(is_rdma);
            assert_eq!(problem.is_some(), expected.is_some(), "{texts:?}: {problem:?}");
            assert!(problem.is_none_or(|problem| problem.contains(expected.unwrap_or_default())));
        }
    }

    #[test]
    fn tables_that_no_card_can_gather_are_refused_by_name() {
        let config = TableConfig::single("users", 4, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
        let copies = TableConfig { writes: Writes::CopyOnWrite, ..config.clone() };
        let halves = TableConfig { dtype: Dtype::F16, ..copies.clone() };
        for (text, config, expected) in [
            ("nic", &config, Some("copy_on_write")),
            ("users=nic", &config, Some("copy_on_write")),
            ("ads=nic", &config, None),
            ("auto", &config, None),
            ("nic", &copies, None),
            ("nic", &halves, Some("f32")),
            ("cpu", &halves, None),
        ] {
            let options = GatherOptions::parse([text]).expect("options");
            let checked = options
                .check(config)
                .and_then(|()| options.check_table(&Table::new(config.clone()).expect("a table")));
            match (checked, expected) {
                (Ok(()), None) => {}
                (Err(refusal), Some(expected)) => {
                    assert_eq!(refusal.fault, Fault::BadConfig);
                    assert!(refusal.reason.contains("\"users\"") && refusal.reason.contains(expected));
                }
                (checked, expected) => panic!("{text}: {checked:?} is not {expected:?}"),
            }
        }
    }
}
