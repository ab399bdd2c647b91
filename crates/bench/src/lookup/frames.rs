//! Pulls from a parameter server, by the frames of any transport.

use std::sync::Arc;

use sanderling_client::{Cluster, ConnectOptions, RemoteTable, addresses};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};

use super::{Connection, LookupOptions};
use crate::result::BenchError;

pub(super) struct Client {
    table: RemoteTable,
    keys: Vec<u64>,
    rows: Vec<f32>,
}

impl Client {
    /// Connects, and creates the table if it is not there.
    pub(super) fn connect(options: &LookupOptions) -> Result<Client, BenchError> {
        // By the transport that the address names.
        let connect = ConnectOptions { prefer_local: false, ..ConnectOptions::default() };
        let cluster: Arc<Cluster> = Cluster::connect(&addresses(&options.target.address)?, connect)?;
        let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        let config = TableConfig::single(&options.table, options.dim, Init::Zero, optimizer);
        let table = RemoteTable::create(&cluster, &config)?;
        Ok(Client { table, keys: Vec::new(), rows: vec![0.0; options.batch * options.dim] })
    }
}

impl Connection for Client {
    fn read(&mut self, numbers: &[u32]) -> Result<usize, BenchError> {
        self.keys.clear();
        self.keys.extend(numbers.iter().map(|number| u64::from(*number)));
        Ok(self.table.pull(&self.keys, Absent::Zero, &mut self.rows, None)?)
    }

    fn store(&mut self, first: u32, count: u32) -> Result<(), BenchError> {
        let keys: Vec<u64> = (first..first + count).map(u64::from).collect();
        let grads = vec![-1.0; keys.len() * self.table.dim()];
        Ok(self.table.push(&keys, &grads, PushScale::default())?)
    }
}
