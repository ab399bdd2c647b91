//! What goes wrong between hubs and trainers, and who says what of it.

use super::*;

#[test]
fn what_goes_wrong_names_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = input(dir.path(), 1);
    let options = SubscribeOptions::default();
    let socket = |name: &str| vec![format!("unix:{}", dir.path().join(name).display()).parse().unwrap()];
    let soon = || Instant::now() + PATIENCE;

    // A row that cannot be read, after many that can.
    let bad = dir.path().join("bad.csv");
    let text = std::fs::read_to_string(&inputs[0]).unwrap();
    std::fs::write(&bad, text + "1,seven,x\n").unwrap();
    let hub = Hub::start(&ServiceConfig { batch: 7000, ..config(&[bad.to_string_lossy().into_owned()]) });
    let mut subscriptions = ["a", "b"].map(|name| open(&[&hub.address], name, &options).unwrap());
    for subscription in &mut subscriptions {
        let error = loop {
            match subscription.next(soon()) {
                Ok(Next::Batch(delivered)) => subscription.acknowledge(delivered.hub, delivered.number),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        let HubError::Failed { hub: at, reason } = &error else { panic!("{error}") };
        assert!(*at == hub.address && reason.contains("bad.csv:9002: column id"), "{error}");
        assert_eq!(subscription.next(soon()).unwrap_err(), error);
    }
    // While they are there, the hub waits for them to go.
    drop(subscriptions);
    let error = hub.end().0.unwrap_err();
    assert!(
        matches!(error, ServiceError::Sample(_)) && error.to_string().contains("bad.csv:9002"),
        "{error}"
    );

    // Another token, another process of the same name, another configuration.
    let token = Some("secret".to_owned());
    let hub = Hub::start(&ServiceConfig { token: token.clone(), listen: socket("1"), ..config(&inputs) });
    let error = open(&[&hub.address], "t", &options).unwrap_err();
    assert!(matches!(&error, HubError::Refused { reason, .. } if reason.contains("token")), "{error}");
    let options = SubscribeOptions { token: "secret".into(), ..options };
    let mut first = open(&[&hub.address], "t", &options).unwrap();
    assert!(matches!(first.next(soon()), Ok(Next::Batch(_))));
    let hasty = SubscribeOptions { patience: Duration::from_secs(5), ..options.clone() };
    let mut second = open(&[&hub.address], "t", &hasty).unwrap();
    let error = loop {
        match first.next(Instant::now() + Duration::from_millis(1)) {
            Ok(Next::Batch(delivered)) => first.acknowledge(delivered.hub, delivered.number),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&error, HubError::Refused { reason, .. } if reason.contains("another one took its name")),
        "{error}"
    );
    let spec = toml::from_str("[[feature]]\nname = \"padding\"").unwrap();
    let other = Hub::start(&ServiceConfig { token: token.clone(), spec, ..config(&inputs) });
    let error = open(&[&hub.address, &other.address], "u", &options).unwrap_err();
    assert!(matches!(&error, HubError::Different { what: "their features", .. }), "{error}");
    other.stop().0.unwrap();

    // One that is gone, and one that came back without knowing where it was.
    let address = hub.address.clone();
    let delivered = next(&mut second).unwrap();
    hub.stop().0.unwrap();
    let error = loop {
        match second.next(soon()) {
            Ok(Next::Batch(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, HubError::Gone { hub, .. } if *hub == address), "{error}");
    drop(delivered);
    let config = ServiceConfig { token, listen: socket("2"), batch: 10, ..config(&inputs) };
    let hub = Hub::start(&config);
    let mut subscription = open(&[&hub.address], "t", &options).unwrap();
    next(&mut subscription).unwrap();
    hub.stop().0.unwrap();
    let hub = Hub::start(&config);
    let error = loop {
        match subscription.next(soon()) {
            Ok(Next::Batch(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, HubError::Restarted { .. }), "{error}");
    hub.stop().0.unwrap();
}

/// Else each would write over what was acknowledged to the other.
#[test]
fn a_position_is_of_one_hub_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let position = Some(dir.path().join("position"));
    let config = ServiceConfig { position, ..config(&input(dir.path(), 1)) };
    let first = Hub::start(&config);
    let error = Service::start(&config, |_| ()).err().unwrap().to_string();
    assert!(error.contains("position: another hub uses this position"), "{error}");
    // Another file, or none, is free, and so is that of one that has ended.
    let other = ServiceConfig { position: Some(dir.path().join("other")), ..config.clone() };
    for config in [other, ServiceConfig { position: None, ..config.clone() }] {
        Hub::start(&config).stop().0.unwrap();
    }
    first.stop().0.unwrap();
    Hub::start(&config).stop().0.unwrap();
}
