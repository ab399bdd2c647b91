//! The gRPC service `Lookup` of `sanderling serve`, by the client that its definition generates.

use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use super::{Connection, LookupOptions, Target, unexpected};
use crate::result::BenchError;

/// The messages of `lookup.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] // generated
mod proto {
    tonic::include_proto!("sanderling.serve");
}

use proto::lookup_client::LookupClient;

/// HTTP/2 windows that hold an answer: at the default of 64 KiB the server waits for the client once per answer.
const WINDOW_BYTES: u32 = 1 << 20;

pub(super) struct Client {
    runtime: Runtime,
    client: LookupClient<Channel>,
    target: Target,
    table: String,
    row_bytes: usize,
}

impl Client {
    pub(super) fn connect(options: &LookupOptions) -> Result<Client, BenchError> {
        let target = &options.target;
        let failed = |error: tonic::transport::Error| BenchError::Grpc(format!("{target}: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| BenchError::Grpc(format!("no runtime: {error}")))?;
        let endpoint = Endpoint::from_shared(format!("http://{}", target.address)).map_err(failed)?;
        let endpoint = endpoint
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .tcp_nodelay(true);
        let channel = runtime.block_on(endpoint.connect()).map_err(failed)?;
        Ok(Client {
            runtime,
            client: LookupClient::new(channel).max_decoding_message_size(usize::MAX),
            target: target.clone(),
            table: options.table.clone(),
            row_bytes: options.dim * size_of::<f32>(),
        })
    }
}

impl Connection for Client {
    fn read(&mut self, numbers: &[u32]) -> Result<usize, BenchError> {
        let keys = numbers.iter().map(|number| u64::from(*number)).collect();
        let tables = vec![proto::Keys { table: self.table.clone(), keys, ..Default::default() }];
        let request = proto::RowsRequest { tables, ..Default::default() };
        let reply = self.runtime.block_on(self.client.rows(request))?.into_inner();
        match &*reply.tables {
            [rows] if rows.weights.len() == numbers.len() * self.row_bytes => Ok(rows.absent.len()),
            _ => Err(unexpected(&self.target, format!("{} tables", reply.tables.len()).as_bytes())),
        }
    }

    fn store(&mut self, _: u32, _: u32) -> Result<(), BenchError> {
        Err(BenchError::Options("a server of a model has its rows already; leave --fill out".to_owned()))
    }
}
