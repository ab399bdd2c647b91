//! Certificates and plain text that do not fit each other: the client reports them at once instead of retrying.

use std::os::unix::fs::PermissionsExt;

use sanderling_client::{ClientError, Cluster, ConnectOptions, RemoteTable, TlsClient};
use sanderling_transport::Address;

use super::{PATIENCE, TO_FILE, config, options, pull, push};
use crate::process::Process;
use sanderling_testkit::LONG;

fn connect(address: &Address, options: ConnectOptions) -> Result<(), ClientError> {
    let servers = Cluster::connect(std::slice::from_ref(address), options)?;
    assert_eq!(servers.transport(), "tls");
    let table = RemoteTable::create(&servers, &config("t"))?;
    push(&table, 1)?;
    assert!(pull(&table, 1)? >= 1.0);
    Ok(())
}

#[test]
fn token_and_tls_are_both_required() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["cert", "other"] {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(path(&format!("{name}.pem")), made.cert.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
    }
    std::fs::write(path("token"), "secret\n").unwrap();
    std::fs::set_permissions(path("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let safe = "--no-local --token-file token --cert-file cert.pem --key-file cert.key";
    let process = Process::start_at(folder.path(), "127.0.0.1:0", 1, TO_FILE, safe);
    let address = &process.addresses[0];
    let check = |ca: Option<&str>, token: &str, expected: &str| {
        let tls = ca.map(|name| TlsClient::from_ca_file(&path(&format!("{name}.pem"))).unwrap());
        // A refusal comes at once; a connection that may still be made is retried until the timeout.
        let timeout = if ["connected", "token"].contains(&expected) { LONG } else { PATIENCE };
        let options = ConnectOptions { tls, token: token.to_owned(), ..options(timeout) };
        let said =
            connect(address, options).map_or_else(|error| error.to_string(), |()| "connected".to_owned());
        assert!(said.contains(expected), "{ca:?}: {said}");
        assert!(said.contains("tcp://") || said == "connected", "{ca:?}: {said}");
    };
    check(Some("cert"), "secret", "connected");
    check(Some("cert"), "wrong", "token");
    check(Some("cert"), "", "token");
    check(Some("other"), "secret", "certificate");
    check(None, "secret", "talks TLS");
}

#[test]
fn certificates_that_do_not_fit_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, is_ca) in [("cert", false), ("other", false), ("ca", true)] {
        let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        if is_ca {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(path(&format!("{name}.pem")), params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    let start = |options: &str| {
        Process::start_at(folder.path(), "127.0.0.1:0", 1, TO_FILE, &format!("--no-local {options}"))
    };
    let check = |address: &Address, ca: Option<&str>, expected: &str| {
        let options = ConnectOptions {
            tls: ca.map(|name| TlsClient::from_ca_file(&path(&format!("{name}.pem"))).unwrap()),
            connect_timeout: LONG,
            ..options(PATIENCE)
        };
        let since = std::time::Instant::now();
        let error = Cluster::connect(std::slice::from_ref(address), options).unwrap_err().to_string();
        assert!(error.contains(expected) && since.elapsed() < LONG / 4, "{address}, {ca:?}: {error}");
        assert_eq!(error.matches(&address.to_string()).count(), 1, "{error}");
    };
    let itself =
        "the server's certificate is itself a CA certificate; make a server certificate with CA:FALSE";
    let server = start("--cert-file cert.pem --key-file cert.key");
    check(&server.addresses[0], Some("other"), "invalid peer certificate");
    check(&server.addresses[0], None, "it talks TLS, and this connection does not");
    let server = start("--cert-file ca.pem --key-file ca.key");
    check(&server.addresses[0], Some("ca"), itself);
    let server = start("");
    check(&server.addresses[0], Some("cert"), "it does not talk TLS, and this connection does");
}
