//! A table's configuration as the JSON of the wire format, in both directions.

use sanderling_store::{Admission, Block, Dtype, Eviction, Init, Optimizer, Packing, TableConfig, Writes};
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;
use sanderling_wire::Fault;

/// The JSON object. It is separate from the store's types, so that a change there cannot change the protocol
/// unnoticed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    blocks: Vec<BlockDescription>,
    #[serde(default, skip_serializing_if = "is_default")]
    seed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    dtype: Dtype,
    #[serde(default, skip_serializing_if = "is_default")]
    admission: Admission,
    #[serde(default, skip_serializing_if = "is_default")]
    eviction: Eviction,
    #[serde(default, skip_serializing_if = "is_default")]
    writes: Writes,
    #[serde(default, skip_serializing_if = "is_default")]
    packing: Packing,
    #[serde(default, skip_serializing_if = "is_default")]
    temporary: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockDescription {
    dims: usize,
    init: Init,
    optimizer: Optimizer,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Parses the configuration that a client sent for the table `name`.
pub(crate) fn parse(name: &str, text: &str) -> Result<TableConfig, Refusal> {
    parse_asked(name, text).map(|(config, _)| config)
}

/// Parses a configuration, and whether the table is temporary.
pub(crate) fn parse_asked(name: &str, text: &str) -> Result<(TableConfig, bool), Refusal> {
    let described: Description = serde_json::from_str(text).map_err(|error| {
        let reason = format!("table {name:?}: the configuration is not what it should be: {error}");
        Refusal::new(Fault::BadConfig, reason)
    })?;
    let Description { blocks, seed, budget_bytes, dtype, admission, eviction, writes, packing, temporary } =
        described;
    let block = |BlockDescription { dims, init, optimizer }| Block { dims, init, optimizer };
    let name = name.to_owned();
    let blocks = blocks.into_iter().map(block).collect();
    let config =
        TableConfig { name, blocks, seed, budget_bytes, dtype, admission, eviction, writes, packing };
    Ok((config, temporary))
}

/// The configuration as text that [`parse`] reads.
pub(crate) fn describe(config: &TableConfig) -> String {
    describe_as(config, false)
}

/// The configuration of a table that may be temporary, as text.
pub(crate) fn describe_as(config: &TableConfig, temporary: bool) -> String {
    let block = |&Block { dims, init, optimizer }: &Block| BlockDescription { dims, init, optimizer };
    let &TableConfig { seed, budget_bytes, dtype, admission, eviction, writes, packing, .. } = config;
    let blocks = config.blocks.iter().map(block).collect();
    let described =
        Description { blocks, seed, budget_bytes, dtype, admission, eviction, writes, packing, temporary };
    serde_json::to_string(&described).expect("numbers and names become JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanderling_store::{PushScale, Table};

    #[test]
    fn what_is_described_is_parsed_back_and_has_that_much_state() {
        for optimizer in [
            r#"{"type":"sgd"}"#,
            r#"{"type":"momentum","momentum":0.5}"#,
            r#"{"type":"adagrad","lr":0.1}"#,
            r#"{"type":"row_adagrad"}"#,
            r#"{"type":"adam"}"#,
            r#"{"type":"adamw"}"#,
            r#"{"type":"ftrl","l1":1.0}"#,
        ] {
            let text = format!(
                r#"{{"blocks":[{{"dims":3,"init":{{"type":"zero"}},"optimizer":{optimizer}}},
                {{"dims":5,"init":{{"type":"uniform","bound":0.5}},"optimizer":{{"type":"adagrad"}}}}],
                "seed":7,"budget_bytes":9000000,"dtype":"f16","admission":{{"type":"always"}},
                "eviction":{{"type":"clock"}},"writes":"copy_on_write"}}"#
            );
            let config = parse("t", &text).expect(optimizer);
            assert_eq!((config.dim(), config.seed, config.budget_bytes), (8, 7, Some(9_000_000)));
            assert_eq!(parse("t", &describe(&config)), Ok(config.clone()));
            let table = Table::new(config).expect(optimizer);
            table.push(&[1], &[0.5; 8], PushScale::default()).expect(optimizer);
            let state = table.get(1).expect("pushed").state.len();
            assert_eq!(table.config().state(), state, "{optimizer}");
        }
    }

    /// The clients' tests write the same golden file.
    #[test]
    fn what_clients_describe_is_understood() {
        let golden = include_str!("../../wire/tests/golden/configuration.json");
        let golden: Vec<serde_json::Value> = serde_json::from_str(golden).expect("JSON");
        for described in golden {
            let config = parse("t", &described.to_string()).expect("a configuration");
            let (_, temporary) = parse_asked("t", &described.to_string()).expect("a configuration");
            let again = describe_as(&config, temporary);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&again).expect("JSON"), described);
        }
    }

    /// Authors of clients rely on the document.
    #[test]
    fn the_document_is_right() {
        let document = include_str!("../../../docs/wire-format.md");
        let (_, section) = document.split_once("### The configuration of a table").expect("a section");
        let (section, _) = section.split_once("\n## ").expect("another section");
        let (_, example) = section.split_once("```json").expect("an example");
        let example = example.trim_end().trim_end_matches('`');
        let config = parse("t", example).expect("a configuration");
        assert_eq!((config.dim(), config.eviction), (9, Eviction::Clock));
        let sightings = Admission::Sightings { sightings: 3, filter_bytes: 1 << 20 };
        assert_eq!(config.admission, sightings);

        // Types in the first cell, settings with their defaults in the second.
        let optimizer = |json: &str| serde_json::from_str::<Optimizer>(json).expect(json);
        let (_, rows) = section.split_once("| optimizer `type` |").expect("a table");
        let mut types = 0;
        for row in rows.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let setting = |setting: &str| {
                let (name, value) = setting.rsplit_once(' ').expect(row);
                format!(r#","{}":{value}"#, name.trim_matches('`'))
            };
            let settings: String = cells[2].split(", ").map(setting).collect();
            for name in cells[1].split(", ") {
                let name = name.trim_matches('`');
                let explicit = optimizer(&format!(r#"{{"type":"{name}"{settings}}}"#));
                assert_eq!(explicit, optimizer(&format!(r#"{{"type":"{name}"}}"#)));
                types += 1;
            }
        }
        assert_eq!(types, 7);
    }

    #[test]
    fn what_is_not_a_configuration_is_refused() {
        for (text, expected) in [
            ("", "EOF"),
            ("{}", "missing field `blocks`"),
            (r#"{"blocks":[],"sead":1}"#, "unknown field `sead`"),
            (r#"{"blocks":[{"dims":-1}]}"#, "invalid value"),
        ] {
            let refusal = parse("t", text).expect_err(text);
            assert_eq!(refusal.fault, Fault::BadConfig);
            assert!(refusal.reason.contains(expected), "{text}: {}", refusal.reason);
        }
    }
}
