//! What stands between clients and a server, and ends their connections when a test says so. Knows no frame.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use sanderling_transport::Address;

/// Carries bytes to a server, and from it as many as it may.
pub(crate) struct Relay {
    /// In place of the server's.
    pub(crate) address: Address,
    pub(crate) left: Arc<AtomicI64>,
    /// Whether it takes connections after one that it has ended.
    pub(crate) is_open: Arc<AtomicBool>,
    clients: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub(crate) fn start(server: &Address) -> Relay {
        let to = server.to_string().trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (left, is_open) = (Arc::new(AtomicI64::new(i64::MAX)), Arc::new(AtomicBool::new(true)));
        let clients = Arc::default();
        let relay = Relay { address, left, is_open, clients };
        let (left, is_open) = (Arc::clone(&relay.left), Arc::clone(&relay.is_open));
        let clients = Arc::clone(&relay.clients);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // Or it could be let through after all have been cut.
                let mut clients = clients.lock().unwrap();
                if !is_open.load(Ordering::Relaxed) {
                    continue;
                }
                clients.push(near.try_clone().unwrap());
                let far = TcpStream::connect(&to).unwrap();
                let (mut up, mut to_server) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || {
                    drop(std::io::copy(&mut up, &mut to_server));
                    drop(to_server.shutdown(Shutdown::Both));
                });
                let left = Arc::clone(&left);
                std::thread::spawn(move || Relay::carry(far, near, &left));
            }
        });
        relay
    }

    /// Ends all connections, and takes no others.
    pub(crate) fn cut(&self) {
        let clients = self.clients.lock().unwrap();
        self.is_open.store(false, Ordering::Relaxed);
        clients.iter().for_each(|client| drop(client.shutdown(Shutdown::Both)));
    }

    fn carry(mut far: TcpStream, mut near: TcpStream, left: &AtomicI64) {
        let mut bytes = vec![0; 1 << 14];
        while let Ok(read) = far.read(&mut bytes)
            && read > 0
            && near.write_all(&bytes[..read]).is_ok()
        {
            if left.fetch_sub(read as i64, Ordering::Relaxed) <= read as i64 {
                // The next connection may carry what there is.
                left.store(i64::MAX, Ordering::Relaxed);
                break;
            }
        }
        drop((near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both)));
    }
}
