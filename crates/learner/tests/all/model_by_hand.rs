//! Models as another program would write them, by `docs/checkpoint-format.md` and `docs/keys.md`. Knows no training.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sanderling_formats::{BadRows, DataConfig};
use sanderling_learner::{Config, LearnError, Model, evaluate, predict};
use sanderling_store::{CheckpointWriter, Init, Optimizer, RowColumns, RowRef, Table, TableConfig};

const CONFIG: &str = "
data = { train = \"a.csv\" }
model = { type = \"fm\", rank = 2 }
[[feature]]
name = \"user\"
[[feature]]
name = \"price\"
type = \"numeric\"
";

/// A table by name, and per key the weights of its row.
type Rows<'a> = (&'a str, usize, &'a [(u64, &'a [f32])]);

fn load(place: &Path, tables: &[Rows<'_>]) -> Result<Model, LearnError> {
    let mut writer = CheckpointWriter::create(place).unwrap();
    for (name, dim, rows) in tables {
        let sgd = Optimizer::Sgd { lr: 0.1, l2: 0.0 };
        let table = Table::new(TableConfig::single(name, *dim, Init::Zero, sgd)).unwrap();
        let mut columns = RowColumns::default();
        for &(key, weights) in *rows {
            columns.push(RowRef { key, frequency: 1, last_use: 1, version: 1, weights, state: &[] });
        }
        table.import(columns.rows()).unwrap();
        writer.table(&table).unwrap();
    }
    let config = Config::parse(CONFIG, Path::new("test.toml"), "run").unwrap();
    writer.blob("config.toml", config.to_toml().as_bytes()).unwrap();
    writer.commit().unwrap();
    Model::load(place)
}

/// The example of the document.
#[test]
fn a_model_scores_as_the_document_says() {
    let place = tempfile::tempdir().unwrap();
    let tables: [Rows<'_>; 3] = [
        ("user", 3, &[(0x4c68_7293_37b3_a5cd, &[0.25, 1.0, 2.0])]),
        ("price", 3, &[(0x123f_3848_fbce_30ab, &[-0.5, 3.0, -1.0])]),
        ("(bias)", 1, &[(0, &[0.5])]),
    ];
    let model = load(&place.path().join("model"), &tables).unwrap();
    let file = place.path().join("a.csv");
    std::fs::write(&file, "user,price\n42,2.5\n43,2.5\n").unwrap();
    let (reading, mut found) = (DataConfig::default(), Vec::new());
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let files = [file.to_string_lossy().into_owned()];
    predict(&model, &files, &reading, &bad_rows, &Arc::default(), |some, _| {
        found.extend_from_slice(some);
        Ok(())
    })
    .unwrap();
    let document = include_str!("../../../../docs/checkpoint-format.md");
    for (found, expected) in found.iter().zip(["0.8807971", "0.3208213"]) {
        assert!(document.contains(expected));
        assert!((found - expected.parse::<f32>().unwrap()).abs() < 1e-6, "{found}, not {expected}");
    }
    assert_eq!(found.len(), 2);
}

/// What is missing is told with the model's place, before anything is loaded.
#[test]
fn a_model_has_the_tables_that_its_configuration_needs() {
    let check = |tables: &[(&str, usize)], expected: &str| {
        let place = tempfile::tempdir().unwrap();
        let tables: Vec<Rows<'_>> = tables.iter().map(|&(name, dim)| (name, dim, &[][..])).collect();
        match load(place.path(), &tables) {
            Err(LearnError::Model { path, reason }) => {
                assert!(path == place.path() && reason.contains(expected), "{reason}, not {expected}");
            }
            found => panic!("{found:?}, not {expected}"),
        }
    };
    check(&[("user", 3), ("price", 3)], "no table \"(bias)\"");
    check(&[("user", 3), ("(bias)", 1)], "no table \"price\"");
    check(&[("user", 3), ("price", 1), ("(bias)", 1)], "table \"price\" has dim 1, the model needs 3");
    check(&[("user", 3), ("price", 3), ("(bias)", 2)], "table \"(bias)\" has dim 2, the model needs 1");
}

/// A prediction that is no number is not passed off as a row that could not be read.
#[test]
fn a_prediction_that_is_no_number_names_the_row_and_the_value() {
    let place = tempfile::tempdir().unwrap();
    let tables: [Rows<'_>; 3] = [
        ("user", 3, &[]),
        ("price", 3, &[(0x123f_3848_fbce_30ab, &[-0.5, 3e15, -1.0])]),
        ("(bias)", 1, &[(0, &[0.5])]),
    ];
    let model = load(&place.path().join("model"), &tables).unwrap();
    let file = place.path().join("a.csv");
    std::fs::write(&file, "label,user,price\n1,42,0\n0,43,9e14\n").unwrap();
    let reading = DataConfig::default();
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let files = [file.to_string_lossy().into_owned()];
    let predicted = predict(&model, &files, &reading, &bad_rows, &Arc::default(), |_, _| Ok(())).map(|_| ());
    let evaluated =
        evaluate(&model, &files, &reading, &bad_rows, 1, &AtomicBool::new(false), &mut |_| {}).map(|_| ());
    for (found, which) in [(predicted, "row 2"), (evaluated, "a row")] {
        let error = found.unwrap_err().to_string();
        assert!(error.contains(which) && error.contains("feature \"price\" has the value 9.0e14"), "{error}");
    }
}
