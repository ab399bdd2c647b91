//! Records of several lines, headers that come again and folders through the commands that read rows. Looks at counts.

use super::Place;

const CONFIG: &str = "data = { train = \"clicks\", format = \"csv\", missing = [\"\"] }\nlabel = { column = \"click\" }\n\
                      feature = [{ each = [\"user\", \"day\"] }]\n";

/// Two partitions, each two files put together, whose rows have line breaks in quotes.
fn place() -> Place {
    let place = Place::new();
    let rows: String = (0..50)
        .map(|row| format!("{},u{},\"seen\n1,u9,\"\"x\"\"\"\n", u8::from(row % 5 == 0), row % 7))
        .collect();
    for day in ["day=1", "day=2"] {
        std::fs::create_dir_all(place.path(&format!("clicks/{day}"))).unwrap();
        place.write(&format!("clicks/{day}/part-0.csv"), &format!("click,user,note\n{rows}").repeat(2));
    }
    place.write("clicks/_SUCCESS", "");
    place.write("c.toml", CONFIG);
    place
}

#[test]
fn every_command_takes_a_record_for_a_row() {
    let place = place();
    let trained = place.run("train c.toml --json");
    let json = trained.json();
    assert_eq!((&json["examples"], &json["bad_rows"]), (&200.into(), &0.into()), "{json}");
    assert!(trained.err.contains("2 repeated header lines were skipped"), "{}", trained.err);
    let evaluated = place.run("eval runs/c/model clicks --json").json();
    assert_eq!(evaluated["examples"], 200, "{evaluated}");
    let predicted = place.run("predict runs/c/model clicks/*");
    assert_eq!(predicted.out.lines().count(), 200, "{}", predicted.err);
    let inspected = place.run("inspect clicks --json").json();
    assert_eq!((&inspected["rows"], &inspected["label"]["positives"]), (&100.into(), &20.into()));
    let converted = place.run("convert c.toml rows.batch");
    assert_eq!(converted.code, Some(0), "{}", converted.err);
    let evaluated = place.run("eval runs/c/model rows.batch --json").json();
    assert_eq!(evaluated["examples"], 200, "{evaluated}");
}
