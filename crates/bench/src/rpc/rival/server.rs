//! The gRPC server. Knows of the benchmark only its table.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use sanderling_store::{Absent, Table};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::proto::rival_server::{Rival, RivalServer as Service};
use super::proto::{PullReply, PullRequest};
use super::{TUNED, runtime};
use crate::result::BenchError;

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct RivalServer {
    _runtime: tokio::runtime::Runtime,
    /// With tuned windows.
    pub(crate) tuned: SocketAddr,
    /// With those that the library has by default.
    pub(crate) untuned: SocketAddr,
}

impl RivalServer {
    /// Serves a table on two ports of the loopback.
    pub(crate) fn start(table: Table) -> Result<RivalServer, BenchError> {
        let runtime = runtime()?;
        let tables = Tables(Arc::new(table));
        let bind = || {
            runtime.block_on(async {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
                let address = listener.local_addr()?;
                Ok::<_, std::io::Error>((TcpIncoming::from(listener).with_nodelay(Some(true)), address))
            })
        };
        let failed = |error| BenchError::Grpc(format!("cannot listen: {error}"));
        let (tuned_incoming, tuned) = bind().map_err(failed)?;
        let (untuned_incoming, untuned) = bind().map_err(failed)?;
        let service = Service::new(tables.clone()).max_decoding_message_size(usize::MAX);
        let server = Server::builder()
            .initial_stream_window_size(TUNED.stream_window)
            .initial_connection_window_size(TUNED.connection_window)
            .max_frame_size(TUNED.frame)
            .tcp_nodelay(true)
            .add_service(service);
        runtime.spawn(server.serve_with_incoming(tuned_incoming));
        let server = Server::builder().add_service(Service::new(tables));
        runtime.spawn(server.serve_with_incoming(untuned_incoming));
        Ok(RivalServer { _runtime: runtime, tuned, untuned })
    }
}

#[derive(Debug, Clone)]
struct Tables(Arc<Table>);

/// Rows as bytes, without a copy.
struct Rows(Vec<f32>);

impl AsRef<[u8]> for Rows {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Tables {
    fn pull(&self, request: &PullRequest) -> Result<PullReply, Status> {
        let copied: Vec<u64>;
        // Where they were received, if that happens to be a multiple of eight.
        let keys = match bytemuck::try_cast_slice(&request.keys) {
            Ok(keys) => keys,
            Err(_) => {
                let words = request.keys.chunks_exact(size_of::<u64>());
                copied = words.map(bytemuck::pod_read_unaligned).collect();
                &copied[..]
            }
        };
        let mut rows = vec![0.0; keys.len() * self.0.dim()];
        let mut missing = Vec::new();
        let pulled = self.0.pull(keys, Absent::Zero, &mut rows, Some(&mut missing));
        pulled.map_err(|error| Status::internal(error.to_string()))?;
        Ok(PullReply { missing, rows: Bytes::from_owner(Rows(rows)) })
    }
}

#[tonic::async_trait]
impl Rival for Tables {
    async fn pull(&self, request: Request<PullRequest>) -> Result<Response<PullReply>, Status> {
        Tables::pull(self, request.get_ref()).map(Response::new)
    }

    type PullAllStream = Pin<Box<dyn Stream<Item = Result<PullReply, Status>> + Send>>;

    async fn pull_all(
        &self,
        requests: Request<Streaming<PullRequest>>,
    ) -> Result<Response<Self::PullAllStream>, Status> {
        let tables = self.clone();
        let replies = requests.into_inner().map(move |request| Tables::pull(&tables, &request?));
        Ok(Response::new(Box::pin(replies)))
    }
}
