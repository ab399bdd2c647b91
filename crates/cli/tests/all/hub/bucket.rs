//! A hub whose input is in a bucket: a small S3 endpoint in this process, and the settings in the environment of the hub's.

use sanderling_testkit::web::{Site, Web};

use super::*;

#[test]
fn the_input_of_a_hub_may_be_in_a_bucket() {
    let dir = folder(3);
    let file = |file: u64| {
        let name = format!("day_{file}.csv");
        (format!("clicks/2026/{name}"), std::fs::read(dir.path().join(name)).unwrap())
    };
    let web = Web::start(Site::new((0..3).map(file)));
    let settings: String =
        web.environment().iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
    let options = "--listen 127.0.0.1:0 --spec spec.toml --batch-size 100 --passes 2 --shuffle-rows 1000";
    let start = |share: &str| {
        let command = format!("hub {options} --share {share} 's3://clicks/2026/day_*.csv'");
        Process::start_command(dir.path(), &format!("export {settings};"), &command, 1)
    };
    let hubs = [start("0/2"), start("1/2")];
    let mut subscription = open(&addresses(&[&hubs[0], &hubs[1]]), "t");
    let mut notes = String::new();
    while let Some(delivered) = next(&mut subscription) {
        notes += &line_of(&delivered);
        subscription.acknowledge(delivered.hub, delivered.number);
    }
    check_each_once(&notes, 2);
    for hub in hubs {
        let (status, said) = hub.end();
        assert!(status.success(), "{said}");
    }
}
